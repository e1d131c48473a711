// SPDX-License-Identifier: Apache-2.0

package layer

// The uncompressed side of a layer as a pipeline of three goroutines:
//
//	source → decompress → chunk ─┬→ hash (diff ID)
//	                             └→ Read (the caller: tar, EROFS)
//
// Chunks are shared, never copied between the two ends, and return to a free
// list when both are done with them: memory is chunkCount × chunkBytes however
// large the layer is. The caller sees io.EOF only after the hash agreed.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// chunkBytes amortises the channel operations and stays in the L2 cache.
	chunkBytes = 256 << 10
	// chunkCount lets each of the three stages work while others wait.
	chunkCount = 8
	// maxWindowBytes bounds what a zstd frame makes us allocate: `zstd --long`
	// uses 128 MiB.
	maxWindowBytes = 128 << 20
	// drainBytes bounds what is read of a broken source just to learn whether
	// its digest was wrong, which is the better message.
	drainBytes = 1 << 30
)

// The first bytes of what [Decompress] understands.
var (
	magicGzip = []byte{0x1f, 0x8b, 0x08}
	magicZstd = []byte{0x28, 0xb5, 0x2f, 0xfd}
	// magicZstdSkip is a skippable frame, masked: 0x184d2a50 to 0x184d2a5f.
	magicZstdSkip = []byte{0x2a, 0x4d, 0x18}
	magicBzip2    = []byte("BZh")
	magicXz       = []byte{0xfd, '7', 'z', 'X', 'Z', 0}
)

// Compression names how a layer is compressed.
type Compression string

// The compressions of OCI layers. Bzip2 and Xz are recognised, to be refused by
// name.
const (
	Plain Compression = "none"
	Gzip  Compression = "gzip"
	Zstd  Compression = "zstd"
	Bzip2 Compression = "bzip2"
	Xz    Compression = "xz"
)

// Detect tells the compression of a stream by its first bytes; six are enough.
func Detect(head []byte) Compression {
	switch {
	case bytes.HasPrefix(head, magicGzip):
		return Gzip
	case bytes.HasPrefix(head, magicZstd),
		len(head) >= 4 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], magicZstdSkip):
		return Zstd
	case bytes.HasPrefix(head, magicBzip2):
		return Bzip2
	case bytes.HasPrefix(head, magicXz):
		return Xz
	}
	return Plain
}

// Stream is the uncompressed bytes of a layer. It is read by one goroutine.
type Stream struct {
	ctx    context.Context
	cancel context.CancelFunc
	src    io.ReadCloser
	in     atomic.Int64
	limits Limits
	want   digest.Digest

	free, hashQ, readQ chan *chunk
	hashed             chan struct{}
	// sum and srcErr are written before hashed, respectively readQ, closes.
	sum    hash.Hash
	srcErr error

	cur   *chunk
	off   int
	err   error
	stop  sync.Once
	group sync.WaitGroup
}

// chunk is a buffer with two readers.
type chunk struct {
	buf  []byte
	refs atomic.Int32
}

// Decompress starts to undo the compression of src, which it detects by its
// magic and not by a media type, and closes src in the end. If want is not
// empty, the last Read fails unless the uncompressed bytes have that digest
// (sha256, as all diff IDs in use). Limits.Bytes, Ratio and RatioFloor hold.
//
// The caller must Close the stream; cancelling ctx fails it.
func Decompress(ctx context.Context, src io.ReadCloser, want digest.Digest, limits Limits) (*Stream, error) {
	if want != "" {
		if err := want.Validate(); err != nil || want.Algorithm() != digest.SHA256 {
			src.Close()
			return nil, api.Errorf(api.KindImage, "decompress layer: diff ID %q is not a sha256 digest", want)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{
		ctx: ctx, cancel: cancel, src: src, want: want, limits: limits.withDefaults(),
		free:   make(chan *chunk, chunkCount),
		hashQ:  make(chan *chunk, chunkCount),
		readQ:  make(chan *chunk, chunkCount),
		hashed: make(chan struct{}),
		sum:    sha256.New(),
	}
	for range chunkCount {
		s.free <- &chunk{buf: make([]byte, 0, chunkBytes)}
	}
	s.group.Add(2)
	go s.produce()
	go s.digest()
	return s, nil
}

// Read implements io.Reader.
func (s *Stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for s.cur == nil {
		if s.err != nil {
			return 0, s.err
		}
		select {
		case c, ok := <-s.readQ:
			if !ok {
				s.err = s.finish()
				continue
			}
			s.cur, s.off = c, 0
		case <-s.ctx.Done():
			s.err = context.Cause(s.ctx)
		}
	}
	n := copy(p, s.cur.buf[s.off:])
	if s.off += n; s.off == len(s.cur.buf) {
		s.release(s.cur)
		s.cur = nil
	}
	return n, nil
}

// Close stops the pipeline and closes the source. It is safe to call twice.
func (s *Stream) Close() error {
	var err error
	s.stop.Do(func() {
		s.cancel()
		err = s.src.Close()
		s.group.Wait()
	})
	return err
}

// Sum is the digest of all that was read. Preconditions: Read returned io.EOF.
func (s *Stream) Sum() digest.Digest {
	return digest.NewDigest(digest.SHA256, s.sum)
}

// CompressedBytes is how much of the source was consumed so far.
func (s *Stream) CompressedBytes() int64 { return s.in.Load() }

// finish is what Read returns at the end: io.EOF, or what went wrong.
func (s *Stream) finish() error {
	if s.srcErr != nil {
		return s.srcErr
	}
	<-s.hashed
	if got := s.Sum(); s.want != "" && got != s.want {
		return api.Errorf(api.KindImage, "uncompressed layer has digest %s, its image says diff ID %s: the layer is corrupt or was tampered with", got, s.want)
	}
	return io.EOF
}

// release gives a chunk back once both readers are done with it. The free list
// has room for every chunk there is, so that it never blocks.
func (s *Stream) release(c *chunk) {
	if c.refs.Add(-1) == 0 {
		s.free <- c
	}
}

// digest is the goroutine that hashes.
func (s *Stream) digest() {
	defer s.group.Done()
	defer close(s.hashed)
	for c := range s.hashQ {
		s.sum.Write(c.buf)
		s.release(c)
	}
}

// produce is the goroutine that reads and decompresses.
func (s *Stream) produce() {
	defer s.group.Done()
	defer close(s.readQ)
	defer close(s.hashQ)
	s.srcErr = s.pump()
}

// pump fills chunks until the source ends, and returns nil then.
func (s *Stream) pump() error {
	raw := &countingReader{r: s.src, n: &s.in}
	dec, kind, err := newDecoder(raw)
	if err != nil {
		return s.explain(raw, kind, err)
	}
	defer dec.Close()
	var out int64
	for {
		var c *chunk
		select {
		case c = <-s.free:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		n, err := io.ReadFull(dec, c.buf[:chunkBytes])
		out += int64(n)
		if lerr := s.check(kind, out); lerr != nil {
			return lerr
		}
		if n > 0 {
			c.buf = c.buf[:n]
			c.refs.Store(2)
			// Both queues hold every chunk there is: these never block.
			s.hashQ <- c
			s.readQ <- c
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) || (err == io.ErrUnexpectedEOF && dec.ended()):
			return s.drained(raw)
		default:
			return s.explain(raw, kind, err)
		}
	}
}

// check applies the limits to what has come out.
func (s *Stream) check(kind Compression, out int64) error {
	if out > s.limits.Bytes {
		return errLimit("Bytes", s.limits.Bytes, "uncompressed layer is larger than %d bytes", s.limits.Bytes)
	}
	in := s.in.Load()
	if kind != Plain && out > s.limits.RatioFloor && out/s.limits.Ratio > in {
		return errLimit("Ratio", s.limits.Ratio, "layer looks like a decompression bomb: %d bytes of %s became %d", in, kind, out)
	}
	return nil
}

// drained reads what follows the compressed stream, because a source that
// verifies its own digest does so at its end.
func (s *Stream) drained(raw io.Reader) error {
	_, err := io.Copy(io.Discard, raw)
	return err
}

// explain turns a decoder's error into ours. A source whose digest is wrong
// usually fails to decompress first; the digest is what matters.
func (s *Stream) explain(raw *countingReader, kind Compression, err error) error {
	if raw.err != nil && raw.err != io.EOF {
		return raw.err
	}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if api.KindOf(err) != api.KindInternal {
		return err
	}
	io.CopyN(io.Discard, raw, drainBytes)
	if raw.err != nil && raw.err != io.EOF {
		return raw.err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return api.Errorf(api.KindImage, "decompress layer: the %s stream is truncated after %d bytes", kind, s.in.Load())
	}
	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return errLimit("zstd window", maxWindowBytes, "decompress layer: %v", err)
	}
	return api.Errorf(api.KindImage, "decompress layer: broken %s stream: %w", kind, err)
}

// decoder reads uncompressed bytes. It remembers a clean end, because
// io.ReadFull reports the end of the last, partial chunk and a truncated
// stream with the same error.
type decoder struct {
	r     io.Reader
	close func()
	eof   bool
}

func (d *decoder) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	d.eof = err == io.EOF
	return n, err
}

func (d *decoder) ended() bool { return d.eof }

func (d *decoder) Close() {
	if d.close != nil {
		d.close()
	}
}

// newDecoder looks at the magic and picks the decoder.
func newDecoder(raw io.Reader) (*decoder, Compression, error) {
	br := bufio.NewReaderSize(raw, 64<<10)
	head, err := br.Peek(6)
	if err != nil && err != io.EOF {
		return nil, Plain, err
	}
	kind := Detect(head)
	switch kind {
	case Gzip:
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, kind, err
		}
		return &decoder{r: zr}, kind, nil
	case Zstd:
		zr, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindowBytes))
		if err != nil {
			return nil, kind, err
		}
		return &decoder{r: zr, close: zr.Close}, kind, nil
	case Bzip2, Xz:
		return nil, kind, api.Errorf(api.KindUnsupported, "decompress layer: %s is not a compression of OCI images (gzip, zstd and none are); recompress it", kind)
	}
	return &decoder{r: br}, kind, nil
}

// countingReader counts, and remembers the source's own error under whatever a
// decoder makes of it.
type countingReader struct {
	r   io.Reader
	n   *atomic.Int64
	err error
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	if err != nil {
		c.err = err
	}
	return n, err
}
