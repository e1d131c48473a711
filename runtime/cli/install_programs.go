// SPDX-License-Identifier: Apache-2.0

// `rungv install --programs DIR`: the programs themselves, put where a node's
// engines find them by whoever brings them in an image.

package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"z.gfire.dev/gvx/runtime/api"
)

// programMode is that of a program that is installed.
const programMode = 0o755

// placePrograms copies this program and containerd's shim to dir, and returns the
// copy's path. What has the same bytes stays: sandboxes run from it.
func placePrograms(cmd *cobra.Command, dir, self string, dryRun bool) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", api.Errorf(api.KindInvalid, "--programs %s: not an absolute path: engines run in folders of their own", dir)
	}
	if filepath.Dir(self) == filepath.Clean(dir) {
		return self, nil
	}
	for from, to := range programsTo(dir, self) {
		if dryRun {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s would be a copy of %s\n", to, from)
			continue
		}
		changed, err := placeProgram(from, to)
		if err != nil {
			return "", fmt.Errorf("install %s: %w", to, err)
		}
		if changed {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: installed\n", to)
		}
	}
	return filepath.Join(dir, filepath.Base(self)), nil
}

// removePrograms removes the copies.
func removePrograms(cmd *cobra.Command, dir, self string, dryRun bool) error {
	for _, to := range programsTo(dir, self) {
		if dryRun {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s would be removed\n", to)
			continue
		}
		if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return configError(err)
		}
	}
	return nil
}

// programsTo says which program goes where.
func programsTo(dir, self string) map[string]string {
	return map[string]string{
		self: filepath.Join(dir, filepath.Base(self)),
		filepath.Join(filepath.Dir(self), shimProgram): filepath.Join(dir, shimProgram),
	}
}

// placeProgram makes to a copy of from, whole or not at all. changed says whether
// it was none.
func placeProgram(from, to string) (changed bool, err error) {
	in, err := os.Open(from)
	if err != nil {
		return false, configError(err)
	}
	defer in.Close()
	if same, err := sameContent(in, to); err != nil || same {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return false, configError(err)
	}
	err = replaceFile(to, programMode, func(temp *os.File) error {
		_, err := io.Copy(temp, in)
		return err
	})
	return err == nil, err
}

// sameContent compares a file with what is at a path, and goes back to its begin.
func sameContent(in *os.File, path string) (bool, error) {
	there, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, configError(err)
	}
	defer there.Close()
	same, err := sameBytes(in, there)
	if err == nil {
		_, err = in.Seek(0, io.SeekStart)
	}
	if err != nil {
		return false, configError(err)
	}
	return same, nil
}

// sameBytes reads two streams to the first difference.
func sameBytes(a, b io.Reader) (bool, error) {
	x, y := make([]byte, 256<<10), make([]byte, 256<<10)
	for {
		n, err := io.ReadFull(a, x)
		m, err2 := io.ReadFull(b, y)
		if n != m || string(x[:n]) != string(y[:m]) {
			return false, nil
		}
		switch {
		case err == nil && err2 == nil:
		case ended(err) && ended(err2):
			return true, nil
		default:
			return false, errors.Join(err, err2)
		}
	}
}

func ended(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }
