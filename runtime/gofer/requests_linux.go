// SPDX-License-Identifier: Apache-2.0

// Which requests are answered, and by what.

package gofer

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
)

// requests are all that a sandbox may ask for. There is nothing to flush. Of sockets
// only the making is answered, by a refusal upon which the Sentry makes its own.
var requests = map[lisafs.MID]lisafs.RPCHandler{
	lisafs.Mount:        lisafs.MountHandler,
	lisafs.Channel:      lisafs.ChannelHandler,
	lisafs.FStat:        lisafs.FStatHandler,
	lisafs.SetStat:      setStat,
	lisafs.Walk:         lisafs.WalkHandler,
	lisafs.WalkStat:     lisafs.WalkStatHandler,
	lisafs.OpenAt:       lisafs.OpenAtHandler,
	lisafs.OpenCreateAt: lisafs.OpenCreateAtHandler,
	lisafs.Close:        lisafs.CloseHandler,
	lisafs.FSync:        lisafs.FSyncHandler,
	lisafs.PWrite:       lisafs.PWriteHandler,
	lisafs.PRead:        lisafs.PReadHandler,
	lisafs.MkdirAt:      lisafs.MkdirAtHandler,
	lisafs.MknodAt:      lisafs.MknodAtHandler,
	lisafs.SymlinkAt:    lisafs.SymlinkAtHandler,
	lisafs.LinkAt:       lisafs.LinkAtHandler,
	lisafs.FStatFS:      lisafs.FStatFSHandler,
	lisafs.FAllocate:    lisafs.FAllocateHandler,
	lisafs.ReadLinkAt:   lisafs.ReadLinkAtHandler,
	lisafs.UnlinkAt:     lisafs.UnlinkAtHandler,
	lisafs.RenameAt:     lisafs.RenameAtHandler,
	lisafs.RenameAt2:    lisafs.RenameAt2Handler,
	lisafs.Getdents64:   lisafs.Getdents64Handler,
	lisafs.FGetXattr:    lisafs.FGetXattrHandler,
	lisafs.FSetXattr:    lisafs.FSetXattrHandler,
	lisafs.FListXattr:   lisafs.FListXattrHandler,
	lisafs.FRemoveXattr: lisafs.FRemoveXattrHandler,
	lisafs.BindAt:       lisafs.BindAtHandler,
}

// handlers are requests as lisafs wants them: by number.
func handlers() []lisafs.RPCHandler {
	var list []lisafs.RPCHandler
	for m, h := range requests {
		for len(list) <= int(m) {
			list = append(list, nil)
		}
		list[m] = h
	}
	return list
}

// setStat answers a failure as one. lisafs' own answer is a success that says what
// failed, which gVisor's client throws away for trees that are not its own alone:
// there a chmod that the host refused would succeed.
func setStat(c *lisafs.Connection, comm lisafs.Communicator, length uint32) (uint32, error) {
	n, err := lisafs.SetStatHandler(c, comm, length)
	if err != nil {
		return 0, err
	}
	var resp lisafs.SetStatResp
	if _, ok := resp.CheckedUnmarshal(comm.PayloadBuf(n)); !ok {
		return 0, unix.EIO
	}
	if resp.FailureErrNo != 0 {
		return 0, unix.Errno(resp.FailureErrNo)
	}
	return n, nil
}
