// SPDX-License-Identifier: Apache-2.0

// Package outputlog keeps what a guest writes to its standard streams, in files
// of docker's json-file form, and reads them back: the tail of it, a span of
// time, or on and on as it grows.
//
// It owns those files and their bound: the oldest is removed when the newest is
// full. It never interprets what a guest wrote, holds no more than one line of
// it in memory, and knows nothing of containers.
//
// # Files
//
// output.log is the newest, output.log.1 the one before, and so on. Each line
// is a JSON object:
//
//	{"log":"text\n","stream":"stdout","time":"2006-01-02T15:04:05.999999999Z"}
//
// A guest's line longer than [MaxLineBytes] is several entries, of which only
// the last one's text ends in a newline. Bytes that are no UTF-8 become U+FFFD,
// as in docker.
package outputlog

import (
	"path/filepath"
	"strconv"
	"time"
)

// Limits of a log.
const (
	// MaxLineBytes is docker's: what is longer is cut into several entries.
	MaxLineBytes = 16 << 10
	// DefaultMaxSizeBytes and DefaultMaxFiles bound a log whose user says
	// nothing: the files lie beside the container's record, often in memory.
	DefaultMaxSizeBytes = 10 << 20
	DefaultMaxFiles     = 2
	// MinSizeBytes keeps a log from being rotated at every entry.
	MinSizeBytes = 4 << 10
	// MaxFiles bounds how many files a rotation renames.
	MaxFiles = 100

	// maxEntryBytes bounds an entry when it is read: a line whose every byte
	// is escaped, and the rest.
	maxEntryBytes = 6*MaxLineBytes + 1<<10
)

// The streams' names in entries.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Entry is one line, or a piece of a long one.
type Entry struct {
	Log    string    `json:"log"`
	Stream string    `json:"stream"`
	Time   time.Time `json:"time"`
}

// Options bound a log.
type Options struct {
	// MaxSizeBytes bounds one file, MaxFiles their number.
	MaxSizeBytes int64
	MaxFiles     int
}

const newest = "output.log"

// Path is the newest file of the log in dir.
func Path(dir string) string { return filepath.Join(dir, newest) }

// name is the name of the n-th file, the newest being number 0.
func name(n int) string {
	if n == 0 {
		return newest
	}
	return newest + "." + strconv.Itoa(n)
}
