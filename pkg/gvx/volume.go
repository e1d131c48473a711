// SPDX-License-Identifier: Apache-2.0

// Volumes: ext4 file systems in files of the host.

package gvx

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// CloneMode says how a volume is cloned.
type CloneMode string

const (
	// CloneDelta makes a file that holds what differs from its base: at once,
	// whatever the size, on every file system. The base must stay as it is.
	CloneDelta CloneMode = "delta"
	// CloneReflink makes a file that shares its blocks with the original, where
	// the host's file system can (XFS, Btrfs).
	CloneReflink CloneMode = "reflink"
	// CloneCopy copies every block.
	CloneCopy CloneMode = "copy"
)

// Volumes makes and changes volumes by rungv. The zero value uses the defaults
// of [Config].
type Volumes struct {
	// RuntimePath and Root are as in [Config].
	RuntimePath, Root string
}

func (v Volumes) verb(ctx context.Context, op string, args ...string) ([]byte, error) {
	r, err := findRuntime(v.RuntimePath, v.Root)
	if err != nil {
		return nil, err
	}
	return r.output(ctx, op, append([]string{"volume"}, args...)...)
}

// file makes a path of what could be taken for a name in the store.
func file(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// Create makes an empty volume in the file path, which must not exist. It takes
// sizeBytes at most, of which it needs no more than what is written to it; 0 is
// rungv's default.
func (v Volumes) Create(ctx context.Context, path string, sizeBytes int64) error {
	args := []string{"create"}
	if sizeBytes > 0 {
		args = append(args, "--size", strconv.FormatInt(sizeBytes, 10))
	}
	_, err := v.verb(ctx, "create volume "+path, append(args, file(path))...)
	return err
}

// Clone makes a clone of the volume from in the file to, which must not exist.
// The original must be clean: no sandbox writes to it, and the last one has
// ended gracefully.
func (v Volumes) Clone(ctx context.Context, from, to string, mode CloneMode) error {
	if mode == "" {
		mode = CloneDelta
	}
	_, err := v.verb(ctx, "clone volume "+from, "clone", "--"+string(mode), file(from), file(to))
	return err
}

// Flatten writes a delta together with its bases into a plain volume in the file
// to: a golden volume that depends on nothing.
func (v Volumes) Flatten(ctx context.Context, from, to string) error {
	_, err := v.verb(ctx, "flatten volume "+from, "flatten", file(from), file(to))
	return err
}

// Commit writes a delta into its base and removes it. The base must have no
// other clone.
func (v Volumes) Commit(ctx context.Context, path string) error {
	_, err := v.verb(ctx, "commit volume "+path, "commit", file(path))
	return err
}

// Compact gives unused space of a volume back to the host.
func (v Volumes) Compact(ctx context.Context, path string) error {
	_, err := v.verb(ctx, "compact volume "+path, "compact", file(path))
	return err
}

// Resize grows a volume.
func (v Volumes) Resize(ctx context.Context, path string, sizeBytes int64) error {
	_, err := v.verb(ctx, "resize volume "+path, "resize", file(path), strconv.FormatInt(sizeBytes, 10))
	return err
}

// Remove removes a volume that nobody uses.
func (v Volumes) Remove(ctx context.Context, path string) error {
	_, err := v.verb(ctx, "remove volume "+path, "rm", file(path))
	return err
}

// Check looks for damage as fsck does, and changes nothing. Damage is
// [ErrVolume].
func (v Volumes) Check(ctx context.Context, path string) error {
	op := "check volume " + path
	out, err := v.verb(ctx, op, "fsck", file(path))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode()&fsckDamaged != 0 {
		return errorf(KindVolume, op, "%s", strings.TrimSpace(string(out)))
	}
	return err
}

// fsckDamaged is fsck(8)'s exit code for what is left to mend.
const fsckDamaged = 4

// Inspect returns what rungv tells about a volume, as a JSON document.
func (v Volumes) Inspect(ctx context.Context, path string) (json.RawMessage, error) {
	op := "inspect volume " + path
	out, err := v.verb(ctx, op, "inspect", file(path))
	if err != nil {
		return nil, err
	}
	return oneDocument(op, out)
}

// oneDocument is the only one of a JSON array.
func oneDocument(op string, out []byte) (json.RawMessage, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(out, &list); err != nil || len(list) != 1 {
		return nil, errorf(KindInternal, op, "rungv printed no list of one document (%v)", err)
	}
	return list[0], nil
}
