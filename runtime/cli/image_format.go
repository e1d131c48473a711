// SPDX-License-Identifier: Apache-2.0

// --format: docker's Go templates, "table TEMPLATE", and json.

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"text/template"

	"z.gfire.dev/gvx/runtime/api"
)

// The words that --format knows besides templates.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// templateFuncs are docker's.
var templateFuncs = template.FuncMap{
	"json":  toJSON,
	"split": strings.Split,
	"join":  strings.Join,
	"title": func(s string) string {
		if s == "" {
			return s
		}
		return strings.ToUpper(s[:1]) + s[1:]
	},
	"lower": strings.ToLower,
	"upper": strings.ToUpper,
	"pad": func(s string, before, after int) string {
		if s == "" {
			return s
		}
		return strings.Repeat(" ", before) + s + strings.Repeat(" ", after)
	},
	"truncate": func(s string, n int) string { return s[:min(max(n, 0), len(s))] },
}

// toJSON encodes without HTML escapes and without the newline.
func toJSON(v any) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// unescape reads the \t and \n of a template typed in a shell.
var unescape = strings.NewReplacer(`\t`, "\t", `\n`, "\n")

func parseTemplate(text string) (*template.Template, error) {
	t, err := template.New("").Funcs(templateFuncs).Parse(unescape.Replace(text))
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "template parsing error: %w", err)
	}
	return t, nil
}

// printList prints rows in docker's ways. header maps the fields of R to
// column titles; table is the default template. The result for no rows is the
// header alone, or nothing.
func printList[R any](w io.Writer, format, table string, header map[string]string, rows []R) error {
	switch {
	case format == "" || format == formatTable:
		format = formatTable + " " + table
	case format == formatJSON:
		for _, r := range rows {
			s, err := toJSON(r)
			if err != nil {
				return err
			}
			fmt.Fprintln(w, s)
		}
		return nil
	}
	text, isTable := strings.CutPrefix(format, formatTable+" ")
	t, err := parseTemplate(text)
	if err != nil {
		return err
	}
	var flush func() error
	if isTable {
		tw := tabwriter.NewWriter(w, 10, 1, 3, ' ', 0)
		w, flush = tw, tw.Flush
		if err := printRow(w, t, header); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if err := printRow(w, t, r); err != nil {
			return err
		}
	}
	if flush != nil {
		return flush()
	}
	return nil
}

func printRow(w io.Writer, t *template.Template, row any) error {
	var b bytes.Buffer
	if err := t.Execute(&b, row); err != nil {
		return api.Errorf(api.KindInvalid, "template parsing error: %w", err)
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

// printInspect prints what `inspect` found: an array, or a template's or
// json's line for each.
func printInspect[R any](w io.Writer, format string, found []R) error {
	if format == formatJSON {
		return printList(w, format, "", nil, found)
	}
	if format != "" {
		t, err := parseTemplate(format)
		if err != nil {
			return err
		}
		for _, f := range found {
			if err := printInspected(w, t, f); err != nil {
				return err
			}
		}
		return nil
	}
	if found == nil {
		found = []R{} // docker prints [] before its error.
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	return enc.Encode(found)
}

// printInspected prints one document by a template, whose names may be Go's
// (.ID) or the JSON's (.Id): docker takes both.
func printInspected(w io.Writer, t *template.Template, document any) error {
	var b bytes.Buffer
	err := printRow(&b, t, document)
	if err != nil {
		doc, jerr := json.Marshal(document)
		if jerr != nil {
			return err
		}
		var generic any
		d := json.NewDecoder(bytes.NewReader(doc))
		d.UseNumber() // Large numbers as they are.
		b.Reset()
		if d.Decode(&generic) != nil || printRow(&b, t.Option("missingkey=error"), generic) != nil {
			return err
		}
	}
	_, err = w.Write(b.Bytes())
	return err
}
