// SPDX-License-Identifier: Apache-2.0

// Environment and label files, as docker reads them.

package cli

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"z.gfire.dev/gvx/runtime/api"
)

// maxKeyFileBytes bounds an environment or label file: Linux gives a process
// no more than 6 MiB of environment at most.
const maxKeyFileBytes = 6 << 20

// readEnv merges files and flags, the flags last. A name without "=" takes its
// value from our own environment, and without one there it is removed from the
// image's (flag) or left out (file), as docker does.
func readEnv(files, flags []string) ([]string, error) {
	var env []string
	for _, path := range files {
		lines, err := readKeyFile("env file", path)
		if err != nil {
			return nil, err
		}
		for _, line := range lines {
			if strings.Contains(line, "=") {
				env = append(env, line)
			} else if value, ok := os.LookupEnv(line); ok {
				env = append(env, line+"="+value)
			}
		}
	}
	for _, e := range flags {
		name, _, set := strings.Cut(e, "=")
		switch {
		case name == "":
			return nil, api.Errorf(api.KindInvalid, "invalid environment variable: %q: want NAME=VALUE", e)
		case strings.IndexByte(e, 0) >= 0:
			return nil, api.Errorf(api.KindInvalid, "invalid environment variable: %q holds a zero byte", name)
		case !set:
			if value, ok := os.LookupEnv(name); ok {
				e = name + "=" + value
			}
		}
		env = append(env, e)
	}
	return env, nil
}

// readLabels merges files and flags, the flags last. A name alone has an empty
// value.
func readLabels(files, flags []string) (map[string]string, error) {
	var all []string
	for _, path := range files {
		lines, err := readKeyFile("label file", path)
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return keyValues("label", append(all, flags...))
}

func keyValues(what string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(list))
	for _, s := range list {
		key, value, _ := strings.Cut(s, "=")
		if key == "" {
			return nil, api.Errorf(api.KindInvalid, "invalid %s format: %q: want KEY=VALUE", what, s)
		}
		m[key] = value
	}
	return m, nil
}

// readKeyFile returns the lines of a file that are neither empty nor comments.
func readKeyFile(what, path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "%s: %w", what, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFileBytes+1))
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "%s: %w", what, err)
	}
	if len(data) > maxKeyFileBytes {
		return nil, api.Errorf(api.KindLimit, "%s %s: longer than %d bytes", what, path, maxKeyFileBytes)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	scanner := bufio.NewScanner(bytes.NewReader(data))
	scanner.Buffer(nil, maxKeyFileBytes+1)
	var lines []string
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimLeftFunc(strings.TrimSuffix(scanner.Text(), "\r"), unicode.IsSpace)
		if line == "" || line[0] == '#' {
			continue
		}
		name, _, _ := strings.Cut(line, "=")
		switch {
		case !utf8.ValidString(line) || strings.IndexByte(line, 0) >= 0:
			return nil, api.Errorf(api.KindInvalid, "%s %s: line %d is no UTF-8 text", what, path, n)
		case name == "":
			return nil, api.Errorf(api.KindInvalid, "%s %s: line %d: no variable name on line '%s'", what, path, n, line)
		case strings.ContainsFunc(name, unicode.IsSpace):
			return nil, api.Errorf(api.KindInvalid, "%s %s: line %d: variable '%s' contains whitespaces", what, path, n, name)
		}
		lines = append(lines, line)
	}
	return lines, scanner.Err()
}

// readAllEnv is readEnv with the entries of [readEnvZero] behind.
func readAllEnv(files, flags []string, zero string) ([]string, error) {
	env, err := readEnv(files, flags)
	if err != nil {
		return nil, err
	}
	more, err := readEnvZero(zero)
	return append(env, more...), err
}

// readEnvZero returns the NAME=value entries of a file, each ended by a zero
// byte as in /proc/PID/environ: any value, with no word on a command line. An
// empty path is no file.
func readEnvZero(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "environment: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFileBytes+1))
	if err != nil {
		return nil, api.Errorf(api.KindInvalid, "environment: %w", err)
	}
	if len(data) > maxKeyFileBytes {
		return nil, api.Errorf(api.KindLimit, "environment %s: longer than %d bytes", path, maxKeyFileBytes)
	}
	var env []string
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(data), "\x00"), "\x00") {
		if entry == "" && len(data) == 0 {
			break
		}
		if i := strings.IndexByte(entry, '='); i < 1 {
			return nil, api.Errorf(api.KindInvalid, "environment %s: %q: want NAME=VALUE", path, entry)
		}
		env = append(env, entry)
	}
	return env, nil
}

func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, api.Errorf(api.KindInvalid, "%q is no number", s)
	}
	return n, nil
}
