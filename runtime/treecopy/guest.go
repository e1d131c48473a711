// SPDX-License-Identifier: Apache-2.0

package treecopy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Job is what the container's side is told, as JSON in its second argument.
type Job struct {
	// Out copies Path out of the container, to standard output; otherwise
	// standard input is copied to Path.
	Out  bool   `json:"out,omitempty"`
	Path string `json:"path"`
	// Root is what Path is called in the stream, for Out; empty is its base.
	Root string `json:"root,omitempty"`
	// Announce has the stream begin with a line of JSON: the [Source].
	Announce bool `json:"announce,omitempty"`
	Follow   bool `json:"follow,omitempty"`
	// Source is what comes in; Raw says that it is a user's own tar, for which
	// Path has to be a directory.
	Source Source `json:"source"`
	Raw    bool   `json:"raw,omitempty"`
	Owner  bool   `json:"owner,omitempty"`
	// Do, if not empty, is a job on files instead of a copy.
	Do Do `json:"do,omitempty"`
}

// Args are the container side's arguments.
func (j *Job) Args() ([]string, error) {
	doc, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	return []string{GuestName, string(doc)}, nil
}

// GuestMain is the container's side. It does not return.
func GuestMain(args []string) {
	err := guest(args, os.Stdin, os.Stdout)
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, err)
	var missing missingError
	if errors.As(err, &missing) {
		os.Exit(exitNotFound)
	}
	os.Exit(exitFailed)
}

func guest(args []string, in io.Reader, out io.Writer) error {
	var j Job
	if len(args) != 2 {
		return fmt.Errorf("%s is started by rungv cp, not by hand", GuestName)
	}
	if err := json.Unmarshal([]byte(args[1]), &j); err != nil {
		return fmt.Errorf("%s: %w", GuestName, err)
	}
	if j.Do != "" {
		return j.do(out)
	}
	if j.Out {
		real, s, err := Find(j.Path, j.Follow)
		if err != nil {
			return err
		}
		root := j.Root
		if root == "" {
			if root = s.Base; s.Contents {
				root = "."
			}
		}
		if j.Announce {
			if err := json.NewEncoder(out).Encode(s); err != nil {
				return err
			}
		}
		return Pack(out, real, root)
	}
	dir, name := j.Path, ""
	if j.Raw {
		if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
			if err != nil {
				return notFound(err)
			}
			return fmt.Errorf("%s: not a directory", dir)
		}
	} else {
		var err error
		if dir, name, err = Resolve(j.Path, j.Source); err != nil {
			return err
		}
	}
	if err := Unpack(in, dir, UnpackOptions{Name: name, Owner: j.Owner, Inside: true}); err != nil {
		return err
	}
	// What follows the archive's end is padding: the writer must not fail.
	_, err := io.Copy(io.Discard, in)
	return err
}

// IsNotFound says that an exit code of the container's side means so.
func IsNotFound(code int) bool { return code == exitNotFound }
