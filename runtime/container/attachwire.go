// SPDX-License-Identifier: Apache-2.0

// The frames on a detached container's attach socket: see FORMAT.md.

package container

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"z.gfire.dev/gvx/runtime/api"
)

// attachSocket is the launcher's socket for those who attach, in the
// container's directory.
const attachSocket = "attach.sock"

// frameType says what a frame carries.
type frameType byte

const (
	// frameInput is what the user types, to the launcher.
	frameInput frameType = 'i'
	// frameSize is the user's terminal's rows and columns, to the launcher.
	frameSize frameType = 'w'
	// frameStdout and frameStderr are the guest's output, to the client.
	frameStdout frameType = 'o'
	frameStderr frameType = 'e'
	// frameReady says that from here on the client misses nothing.
	frameReady frameType = 'r'
	// frameExit is how the guest ended, as JSON, to the client.
	frameExit frameType = 'x'
)

const (
	frameHeaderBytes = 4
	// maxFrameBytes bounds what either side holds for the other: a pipe's
	// capacity.
	maxFrameBytes = 64 << 10
)

// writeFrame writes one frame in one write.
func writeFrame(w io.Writer, t frameType, payload []byte) error {
	frame := make([]byte, frameHeaderBytes, frameHeaderBytes+len(payload))
	binary.BigEndian.PutUint32(frame, uint32(len(payload)))
	frame[0] = byte(t)
	_, err := w.Write(append(frame, payload...))
	return err
}

// readFrame reads one frame; the payload is valid until the next call.
func readFrame(r io.Reader, buf *[maxFrameBytes]byte) (frameType, []byte, error) {
	var header [frameHeaderBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	t := frameType(header[0])
	header[0] = 0
	n := binary.BigEndian.Uint32(header[:])
	if n > maxFrameBytes {
		return 0, nil, api.Errorf(api.KindInternal, "attach: a frame of %d bytes, at most %d", n, maxFrameBytes)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return 0, nil, fmt.Errorf("attach: cut frame: %w", err)
	}
	return t, buf[:n], nil
}

// sizePayload is frameSize's payload.
func sizePayload(rows, columns uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, rows), columns)
}

func parseSize(p []byte) (rows, columns uint16, ok bool) {
	if len(p) != 4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), true
}

// parseExit reads frameExit's payload.
func parseExit(p []byte) (api.ExitStatus, error) {
	var e api.ExitStatus
	if err := json.Unmarshal(p, &e); err != nil || e.Code < 0 || e.Code > 255 {
		return api.ExitStatus{}, api.Errorf(api.KindInternal, "attach: exit status %.64q is none", p)
	}
	return e, nil
}
