// SPDX-License-Identifier: Apache-2.0

// Small jobs on single files, for programs: what is there, remove it, make a
// directory.

package treecopy

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Do is a job that copies nothing.
type Do string

// The jobs on files.
const (
	// DoStat writes one [Entry], for the path itself.
	DoStat Do = "stat"
	// DoList writes an [Entry] for each name in a directory.
	DoList Do = "list"
	// DoRemove removes a file, or a tree; one that is not there is no error.
	DoRemove Do = "remove"
	// DoMkdir makes a directory and those above it.
	DoMkdir Do = "mkdir"
)

// Entry is a line of DoStat and DoList, as JSON. Whoever reads it does not trust
// it: the container may have had a hand in it.
type Entry struct {
	// Name is any bytes but '/' and zero.
	Name []byte `json:"name"`
	// Mode has type and permission bits as [fs.FileMode] has them.
	Mode fs.FileMode `json:"mode"`
	Size int64       `json:"size"`
	UID  uint32      `json:"uid"`
	GID  uint32      `json:"gid"`
	Time time.Time   `json:"time"`
	// Target is a symbolic link's.
	Target []byte `json:"target,omitempty"`
}

// listBatch is how many entries of a directory are read at once.
const listBatch = 1024

// do carries out a job on files.
func (j *Job) do(out io.Writer) error {
	switch j.Do {
	case DoStat:
		stat := os.Lstat
		if j.Follow {
			stat = os.Stat
		}
		info, err := stat(j.Path)
		if err != nil {
			return notFound(err)
		}
		return json.NewEncoder(out).Encode(entryOf(j.Path, info))
	case DoList:
		return list(j.Path, out)
	case DoRemove:
		return os.RemoveAll(j.Path)
	case DoMkdir:
		return os.MkdirAll(j.Path, 0o755)
	}
	return fmt.Errorf("%s: unknown job %q", GuestName, j.Do)
}

func list(path string, out io.Writer) error {
	dir, err := os.Open(path)
	if err != nil {
		return notFound(err)
	}
	defer dir.Close()
	w := bufio.NewWriterSize(out, copyBytes)
	lines := json.NewEncoder(w)
	for {
		entries, err := dir.ReadDir(listBatch)
		for _, e := range entries {
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // Removed meanwhile.
			}
			if err == nil {
				err = lines.Encode(entryOf(path+"/"+e.Name(), info))
			}
			if err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return w.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// entryOf describes the file at path.
func entryOf(path string, info fs.FileInfo) Entry {
	e := Entry{Name: []byte(info.Name()), Mode: info.Mode(), Size: info.Size(), Time: info.ModTime()}
	e.UID, e.GID = ownerOf(info)
	if e.Mode.Type() == fs.ModeSymlink {
		if target, err := os.Readlink(path); err == nil {
			e.Target = []byte(target)
		}
	}
	return e
}
