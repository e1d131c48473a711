// SPDX-License-Identifier: Apache-2.0

// Package stdio joins the standard streams of a guest's process to where
// containerd wants them: fifos, which are donated to the guest as they are so
// that no byte of output passes through the shim; files, to which is appended;
// programs that log; and terminals, which are the shim's.
//
// It owns the shim's ends of all of them, and the copying where there is any. It
// knows nothing of tasks or sandboxes, and believes nothing about who reads: a
// reader that comes late or is away for a while, such as a containerd that is started
// again, loses nothing and breaks no guest, and one that never reads keeps nothing from
// ending.
package stdio

import (
	"fmt"
	"net/url"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

// Config names a process' streams, in containerd's words: paths of fifos, or
// "file", "fifo", "binary" and "binary-v2" URIs for output. "" is /dev/null.
type Config struct {
	// ID and Namespace are told to a program that logs.
	ID, Namespace         string
	Stdin, Stdout, Stderr string
	Terminal              bool
}

// The schemes of an output.
const (
	schemeFIFO     = "fifo"
	schemeFile     = "file"
	schemeBinary   = "binary"
	schemeBinaryV2 = "binary-v2"
)

// target is where an output goes.
type target struct {
	scheme string
	path   string
	// args are a logging program's.
	args []string
}

// isProgram says whether output goes to a program that logs.
func (t target) isProgram() bool { return t.scheme == schemeBinary || t.scheme == schemeBinaryV2 }

// parseTarget reads the URI or path of an output. A path without a scheme is a
// fifo, or a file if it turns out to be one.
func parseTarget(s string) (target, error) {
	if strings.HasPrefix(s, "/") {
		return target{scheme: schemeFIFO, path: s}, nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return target{}, api.Errorf(api.KindInvalid, "output %q: %w", s, err)
	}
	t := target{scheme: u.Scheme, path: u.Path}
	switch u.Scheme {
	case schemeFIFO, schemeFile:
	case schemeBinary, schemeBinaryV2:
		if t.args, err = queryArgs(u.RawQuery); err != nil {
			return target{}, api.Errorf(api.KindInvalid, "output %q: %w", s, err)
		}
	default:
		return target{}, api.Errorf(api.KindUnsupported, "output %q: there are fifo, file, binary and binary-v2, not %q", s, u.Scheme)
	}
	if !strings.HasPrefix(t.path, "/") {
		return target{}, api.Errorf(api.KindInvalid, "output %q: its path is not absolute", s)
	}
	return t, nil
}

// queryArgs makes a logging program's arguments of its URI's query: each key, and
// its value if it has one, in the order in which they stand.
func queryArgs(query string) ([]string, error) {
	var args []string
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		for _, part := range []string{key, value} {
			text, err := url.QueryUnescape(part)
			if err != nil {
				return nil, fmt.Errorf("argument %q: %w", pair, err)
			}
			if text != "" {
				args = append(args, text)
			}
		}
	}
	return args, nil
}
