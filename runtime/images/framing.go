// SPDX-License-Identifier: Apache-2.0

// Framing: what a layer's tar holds beside file contents (headers, padding,
// order), kept so that the very same tar can be made again from the converted
// layer. Its hash is the diff ID that the image's configuration names, so that
// an image saved here loads anywhere, and we need not keep every layer twice.
//
// The format is tar-split's, as in docker's own store: JSON entries, gzipped.
// It cannot express some tars that nevertheless convert: contents that a later
// entry of the same layer replaces, sparse members, paths through symlinks.
// For those, which are rare, the tar itself is kept, compressed with zstd.

package images

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/vbatts/tar-split/tar/asm"
	"github.com/vbatts/tar-split/tar/storage"

	"z.gfire.dev/gvx/runtime/api"
)

// The framings of a layer record, and the files of a layer.
const (
	framingSplit = "tar-split"
	framingTar   = "tar"

	extLayer  = ".erofs"
	extRecord = ".json"
	extSplit  = ".tar-split.gz"
	extTar    = ".tar.zst"
)

// maxEntryBytes bounds one JSON entry of a framing file. tar-split's longest
// are a mebibyte of padding, in base64, and extended headers of that size.
const maxEntryBytes = 8 << 20

// errNoFraming says that the framing cannot express this tar.
var errNoFraming = errors.New("tar cannot be made again from its contents")

// framer writes the framing of the tar that is read through it.
type framer struct {
	src  io.Reader
	side *sideline
	done chan error
	pack *packer
	read int64
}

// newFramer returns a reader of src's bytes which records their framing in w.
// The caller reads to the end and then calls finish, or gives up with abort.
func newFramer(src io.Reader, w io.Writer) *framer {
	f := &framer{src: src, side: newSideline(), done: make(chan error, 1), pack: newPacker(w)}
	go func() { f.done <- f.split(f.side) }()
	return f
}

// split is the second reader. It works beside the conversion, not before it,
// so that what it cannot parse does not fail what the conversion can.
func (f *framer) split(pr io.Reader) error {
	// Whatever happens, the main path must be able to go on writing.
	defer io.Copy(io.Discard, pr)
	r, done, err := asm.NewInputTarStreamWithDone(pr, f.pack, passedOver(make([]byte, sidelineBytes)))
	if err != nil {
		return err
	}
	_, err = discard(r, make([]byte, sidelineBytes))
	r.Close()
	return errors.Join(err, <-done)
}

// passedOver is a storage.FilePutter that drops contents. It does not sum them
// up, as tar-split's own does for half as long as SHA-256 takes: the diff ID
// covers every byte that is put together again. The buffer is as large as the
// pieces that come.
type passedOver []byte

// Put implements storage.FilePutter.
func (b passedOver) Put(_ string, r io.Reader) (int64, []byte, error) {
	n, err := discard(r, b)
	return n, nil, err
}

// discard reads r to its end, by reads of the buffer's size.
func discard(r io.Reader, buf []byte) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buf)
}

// Read implements io.Reader.
func (f *framer) Read(p []byte) (int, error) {
	n, err := f.src.Read(p)
	if n > 0 {
		f.read += int64(n)
		f.side.write(p[:n])
	}
	return n, err
}

// abort ends the second reader.
func (f *framer) abort() {
	f.side.close(errGaveUp)
	<-f.done
}

// finish completes the framing file. It returns errNoFraming, with the reason,
// when the tar has to be kept instead.
// Preconditions: the source was read to its end.
func (f *framer) finish() error {
	f.side.close(io.EOF)
	err := <-f.done
	switch {
	case f.pack.writeErr != nil:
		return f.pack.writeErr
	case err != nil:
		return fmt.Errorf("%w: %w", errNoFraming, err)
	case f.pack.bytes != f.read:
		return fmt.Errorf("%w: it has sparse members", errNoFraming)
	}
	return f.pack.gz.Close()
}

// errGaveUp is what the second reader sees when the first gave up.
var errGaveUp = errors.New("layer conversion ended")

// contentEntry is a file whose content the layer has to give back.
type contentEntry struct {
	name string
	size int64
}

// packer writes entries and refuses what unpacking could not find again.
type packer struct {
	gz    *gzip.Writer
	enc   *json.Encoder
	pos   int
	bytes int64
	// contents are the entries that had content so far, in order; seen
	// has their names.
	contents []contentEntry
	seen     map[string]struct{}
	writeErr error
}

func newPacker(w io.Writer) *packer {
	gz, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // Fails for unknown levels only.
	return &packer{gz: gz, enc: json.NewEncoder(gz), seen: map[string]struct{}{}}
}

// AddEntry implements storage.Packer.
func (p *packer) AddEntry(e storage.Entry) (int, error) {
	e.Position = p.pos
	if e.Type == storage.SegmentType {
		p.bytes += int64(len(e.Payload))
	} else {
		p.bytes += e.Size
		name := cleanMember(e.GetName())
		if _, ok := p.seen[name]; ok {
			return -1, fmt.Errorf("%q is there more than once", name)
		}
		if e.Size > 0 {
			p.seen[name] = struct{}{}
			p.contents = append(p.contents, contentEntry{name, e.Size})
		}
	}
	if err := p.enc.Encode(e); err != nil {
		p.writeErr = err
		return -1, err
	}
	p.pos++
	return e.Position, nil
}

// unpacker reads the entries of a framing file, one a line.
type unpacker struct{ lines *bufio.Scanner }

// newUnpacker bounds each entry, for the file may be damaged.
func newUnpacker(r io.Reader) (*unpacker, *gzip.Reader, error) {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return nil, nil, err
	}
	lines := bufio.NewScanner(gz)
	lines.Buffer(nil, maxEntryBytes)
	return &unpacker{lines: lines}, gz, nil
}

// Next implements storage.Unpacker.
func (u *unpacker) Next() (*storage.Entry, error) {
	if !u.lines.Scan() {
		if err := u.lines.Err(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
	var e storage.Entry
	if err := json.Unmarshal(u.lines.Bytes(), &e); err != nil {
		return nil, err
	}
	if e.Type != storage.SegmentType && e.Type != storage.FileType || e.Size < 0 {
		return nil, fmt.Errorf("entry %d has type %d", e.Position, e.Type)
	}
	return &e, nil
}

// cleanMember is the path below the root that a tar member's name means.
func cleanMember(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// layerFiles reads the files of a converted layer, by path below its root,
// following no symlink.
type layerFiles interface {
	// OpenFile fails unless path is a regular file.
	OpenFile(path string) (r io.ReadCloser, size int64, err error)
}

// checkContents makes sure that each content is where the unpacker will look
// for it. It returns errNoFraming if not.
func checkContents(contents []contentEntry, files layerFiles) error {
	for _, c := range contents {
		r, size, err := files.OpenFile(c.name)
		if err != nil {
			return fmt.Errorf("%w: %w", errNoFraming, err)
		}
		r.Close()
		if size != c.size {
			return fmt.Errorf("%w: %q has %d bytes, not %d", errNoFraming, c.name, size, c.size)
		}
	}
	return nil
}

// assemble writes the tar of a framing and the contents it leaves out. The sums
// of contents that other writers of the format record are not looked at: who
// reads the tar checks its digest.
func assemble(w io.Writer, entries storage.Unpacker, files layerFiles) error {
	for {
		e, err := entries.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if e.Type == storage.SegmentType {
			_, err = w.Write(e.Payload)
		} else if e.Size > 0 {
			err = copyContent(w, files, e.GetName(), e.Size)
		}
		if err != nil {
			return err
		}
	}
}

func copyContent(w io.Writer, files layerFiles, name string, size int64) error {
	r, has, err := files.OpenFile(cleanMember(name))
	if err != nil {
		return err
	}
	defer r.Close()
	if has != size {
		return api.Errorf(api.KindImage, "%q has %d bytes, its tar %d", name, has, size)
	}
	_, err = io.Copy(w, r)
	return err
}

// writeTar writes the layer's tar to w, as it was when it came in; the caller
// checks its digest.
func (s *Store) writeTar(w io.Writer, h hexDigest, rec *layerRecord) error {
	if rec.Framing == framingTar {
		return s.writeKeptTar(w, h)
	}
	split, err := os.Open(s.layerFile(h, extSplit))
	if err != nil {
		return err
	}
	defer split.Close()
	u, gz, err := newUnpacker(split)
	if err != nil {
		return api.Errorf(api.KindImage, "layer %s: framing file: %w", h, err)
	}
	defer gz.Close()
	f, err := openShared(s.layerPath(h))
	if err != nil {
		return err
	}
	defer f.Close()
	files, err := openLayerFiles(f)
	if err != nil {
		return fmt.Errorf("layer %s: %w", h, err)
	}
	return assemble(w, u, files)
}

func (s *Store) writeKeptTar(w io.Writer, h hexDigest) error {
	f, err := os.Open(s.layerFile(h, extTar))
	if err != nil {
		return err
	}
	defer f.Close()
	d, err := zstd.NewReader(f)
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = io.Copy(w, d)
	return err
}
