// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBundleOfTheWorkingDirectory is meant only where a flag of runc's says so: a
// directory that somebody else has filled must not decide what runs on the host.
func TestBundleOfTheWorkingDirectory(t *testing.T) {
	linuxOnly(t)
	root := filepath.Join(t.TempDir(), "root")
	t.Chdir(t.TempDir())
	check := func(args string, code int, say string) {
		t.Helper()
		out, errs, got := rungv(t, root, strings.Fields(args)...)
		if got != code || !strings.Contains(errs, say) {
			t.Errorf("rungv %s: exit code %d, want %d, with %q:\n%s%s", args, got, code, say, out, errs)
		}
		if hint := "give --bundle ."; strings.Contains(errs, hint) != strings.Contains(say, hint) {
			t.Errorf("rungv %s: %s", args, errs)
		}
	}
	const image = "No such image: box"
	check("run --pid-file pid box", 125, "--pid-file is about an OCI bundle, which the working directory is not")
	check("create --no-pivot box", 125, "--no-pivot is about an OCI bundle, which the working directory is not")
	check("--systemd-cgroup run --pull never box", 125, image)

	check("spec", 0, "")
	// A bundle's verbs take nothing but an id, and say so before they do anything.
	const bundle = "with a bundle, exactly one argument"
	for _, mark := range []string{"--console-socket x", "--pid-file x", "--pidfd-socket x", "--no-pivot", "--no-new-keyring", "--preserve-fds 0", "--bundle ."} {
		check("create "+mark+" box more", 125, bundle)
		check("run "+mark+" box more", 125, bundle)
	}
	check("run --keep box more", 125, bundle)
	check("--systemd-cgroup create box more", 125, bundle)
	check("--criu x run box more", 125, bundle)
	const hint = " (the working directory is an OCI bundle: for its container, give --bundle .)"
	check("run --pull never box", 125, image+hint)
	check("run --pull never --rm box", 125, image+hint)
	check("create --pull never box", 1, image+hint)
	check("run --pull never box sh", 125, image)

	// A document of something else.
	if err := os.WriteFile("config.json", []byte(`{"model_type": "bert"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	check("run --pull never box", 125, image)
}

// TestSubCgroups reads --cgroup as runc does.
func TestSubCgroups(t *testing.T) {
	for args, want := range map[string]string{
		"":                              "map[]",
		"sub":                           "map[:sub]",
		"/":                             "map[:/]",
		"memory:a cpu,cpuacct:b":        "map[cpu:b cpuacct:b memory:a]",
		"memory:a b":                    "missing <controller>: prefix",
		":a":                            "empty",
		"memory,:a":                     "empty",
		"memory:a memory:b":             "given twice",
		"memory:a cpu:b cpu,cpuacct:cc": "given twice",
	} {
		got, err := subCgroups(strings.Fields(args))
		if text := fmt.Sprint(got, err); !strings.Contains(text, want) || (err == nil) != strings.HasPrefix(want, "map") {
			t.Errorf("%q: %s, want %s", args, text, want)
		}
	}
}
