// SPDX-License-Identifier: Apache-2.0

// containerd's config.toml.

package nodeconfig

import (
	"bytes"
	"fmt"

	"github.com/pelletier/go-toml/v2"

	"z.gfire.dev/gvx/runtime/api"
)

// The marks around what is ours. What is between them is nobody else's.
const (
	markBegin = "# gvx: begin of runtime %q, added by rungv install\n"
	markEnd   = "# gvx: end of runtime %q\n"
)

// Versions of the configuration, and the CRI plugin's name in each.
const (
	// emptyVersion is that of a file that is made here.
	emptyVersion = 3
	criVersion2  = "io.containerd.grpc.v1.cri"
	criVersion3  = "io.containerd.cri.v1.runtime"
)

// containerdFile is what matters of a config.toml.
type containerdFile struct {
	Version int `toml:"version"`
	Plugins map[string]struct {
		Containerd struct {
			Runtimes map[string]struct {
				Type string `toml:"runtime_type"`
			} `toml:"runtimes"`
		} `toml:"containerd"`
	} `toml:"plugins"`
}

// AddContainerd adds a runtime for CRI, whose shim is the program at path, to a
// config.toml, at its end. changed says whether that was to be done.
func AddContainerd(doc []byte, name, path string) (out []byte, changed bool, err error) {
	file, err := parseContainerd(doc)
	if err != nil {
		return nil, false, err
	}
	before, ours, after, err := splitMarked(doc, name)
	if err != nil {
		return nil, false, err
	}
	plugin := criVersion3
	switch {
	case len(bytes.TrimSpace(doc)) == 0:
		before = []byte(fmt.Sprintf("version = %d\n", emptyVersion))
	case file.Version == 2:
		plugin = criVersion2
	case file.Version != 3 && file.Version != 4:
		return nil, false, api.Errorf(api.KindUnsupported, "config.toml has version %d, this program knows 2, 3 and 4: see `containerd config migrate`", file.Version)
	}
	if r, there := file.Plugins[plugin].Containerd.Runtimes[name]; there && ours == nil {
		return nil, false, api.Errorf(api.KindExists, "config.toml has a runtime %q, which is %s: remove it, or choose another name", name, r.Type)
	}
	text := fmt.Sprintf(markBegin, name) +
		fmt.Sprintf("[plugins.'%s'.containerd.runtimes.%s]\n  runtime_type = '%s'\n  runtime_path = '%s'\n", plugin, name, ShimRuntime, path) +
		fmt.Sprintf(markEnd, name)
	if string(ours) == text {
		return doc, false, nil
	}
	if len(before) > 0 && !bytes.HasSuffix(before, []byte("\n")) {
		before = append(before, '\n')
	}
	out = append(append(bytes.Clone(before), text...), after...)
	if _, err := parseContainerd(out); err != nil {
		return nil, false, fmt.Errorf("with the runtime added: %w", err)
	}
	return out, true, nil
}

// RemoveContainerd takes from config.toml what AddContainerd has added.
func RemoveContainerd(doc []byte, name string) (out []byte, changed bool, err error) {
	if _, err := parseContainerd(doc); err != nil {
		return nil, false, err
	}
	before, ours, after, err := splitMarked(doc, name)
	if err != nil || ours == nil {
		return doc, false, err
	}
	return append(bytes.Clone(before), after...), true, nil
}

func parseContainerd(doc []byte) (*containerdFile, error) {
	if err := checkSize("config.toml", doc); err != nil {
		return nil, err
	}
	file := &containerdFile{}
	if err := toml.Unmarshal(doc, file); err != nil {
		return nil, api.Errorf(api.KindInvalid, "config.toml: %w", err)
	}
	return file, nil
}

// splitMarked finds what is ours; it is nil where nothing is.
func splitMarked(doc []byte, name string) (before, ours, after []byte, err error) {
	begin, end := []byte(fmt.Sprintf(markBegin, name)), []byte(fmt.Sprintf(markEnd, name))
	i := bytes.Index(doc, begin)
	if i < 0 {
		return doc, nil, nil, nil
	}
	k := bytes.Index(doc[i:], end)
	if k < 0 {
		return nil, nil, nil, api.Errorf(api.KindInvalid, "config.toml has the line %q and not %q: put the file in order by hand", bytes.TrimSpace(begin), bytes.TrimSpace(end))
	}
	k += i + len(end)
	return doc[:i], doc[i:k], doc[k:], nil
}
