// SPDX-License-Identifier: Apache-2.0

// Network interfaces in the guest's sysfs, which gVisor's lacks:
// Documentation/ABI/testing/sysfs-class-net and -net-statistics of the kernel. As on
// Linux, a mount shows those of the network namespace of whoever mounted it:
// /sys/class/net/NAME is a link to /sys/devices/virtual/net/NAME. Nothing can be written.

package boot

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/sys"
	"gvisor.dev/gvisor/pkg/sentry/inet"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

const (
	sysDirMode  = 0o755
	sysFileMode = 0o444
	// netInos is above the inode numbers that gVisor's sysfs comes to; each interface has
	// some from its index on, a bridge one for each port.
	netInos  = uint64(1) << 62
	inosBits = 24
	// interfaceKindBridge and what its ports are in: forwarding, BR_STATE_FORWARDING.
	interfaceKindBridge = "bridge"
	portForwarding      = "3\n"
	// deviceFlags are those that a device has, without what is asked of its state.
	deviceFlags = 0xffff &^ linux.IFF_RUNNING
	// transmitQueueLength is that of every interface.
	transmitQueueLength = "1000\n"
)

// sysfs is gVisor's with the network in it.
type sysfs struct{ sys.FilesystemType }

// GetFilesystem implements vfs.FilesystemType.
func (s *sysfs) GetFilesystem(ctx context.Context, v *vfs.VirtualFilesystem, creds *auth.Credentials, source string, opts vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	fs, root, err := s.FilesystemType.GetFilesystem(ctx, v, creds, source, opts)
	if err != nil {
		return nil, nil, err
	}
	if stack := inet.StackFromContext(ctx); stack != nil {
		if err := addNetwork(ctx, creds, root.Impl().(*kernfs.Dentry).Inode(), stack); err != nil {
			log.Warningf("sysfs has no network interfaces: %v", err)
		}
	}
	return fs, root, nil
}

// sysDir is a directory of gVisor's sysfs.
type sysDir interface {
	kernfs.Inode
	Insert(name string, child kernfs.Inode) error
	DevMajor() uint32
	DevMinor() uint32
}

// addNetwork adds class/net and devices/virtual/net.
func addNetwork(ctx context.Context, creds *auth.Credentials, root kernfs.Inode, stack inet.Stack) error {
	below := func(name string) (sysDir, error) {
		inode, err := root.Lookup(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", name, err)
		}
		dir, ok := inode.(sysDir)
		if !ok {
			return nil, fmt.Errorf("%s is a %T", name, inode)
		}
		return dir, nil
	}
	class, err := below("class")
	if err != nil {
		return err
	}
	devices, err := below("devices")
	if err != nil {
		return err
	}
	n := &netSysfs{stack: stack, creds: creds, major: class.DevMajor(), minor: class.DevMinor()}
	virtual := n.dir(ctx, netInos, map[string]kernfs.Inode{"net": n.interfaces(ctx, netInos+1, false)})
	if err := devices.Insert("virtual", virtual); err != nil {
		return fmt.Errorf("add devices/virtual: %w", err)
	}
	if err := class.Insert("net", n.interfaces(ctx, netInos+2, true)); err != nil {
		return fmt.Errorf("add class/net: %w", err)
	}
	return nil
}

// netSysfs is what one mount shows.
type netSysfs struct {
	// stack is not held on to: without its namespace it has no interfaces.
	stack        inet.Stack
	creds        *auth.Credentials
	major, minor uint32
}

// netInterface is one of the stack's.
type netInterface struct {
	index int32
	inet.Interface
}

// list returns all interfaces by their index.
func (n *netSysfs) list() []netInterface {
	var all []netInterface
	for index, i := range n.stack.Interfaces() {
		all = append(all, netInterface{index, i})
	}
	slices.SortFunc(all, func(a, b netInterface) int { return cmp.Compare(a.index, b.index) })
	return all
}

// inSysfs is what all inodes of sysfs say of their file system.
type inSysfs struct{}

// StatFS implements kernfs.Inode.
func (inSysfs) StatFS(context.Context, *vfs.Filesystem) (linux.Statfs, error) {
	return vfs.GenericStatFS(linux.SYSFS_MAGIC), nil
}

// Entries of sysfs.
type (
	staticDir struct {
		kernfs.StaticDirectory
		inSysfs
	}
	staticLink struct {
		kernfs.StaticSymlink
		inSysfs
	}
	textFile struct {
		kernfs.DynamicBytesFile
		inSysfs
	}
)

func (n *netSysfs) dir(ctx context.Context, ino uint64, children map[string]kernfs.Inode) kernfs.Inode {
	d := &staticDir{}
	n.fill(ctx, &d.StaticDirectory, ino, children)
	return d
}

func (n *netSysfs) fill(ctx context.Context, d *kernfs.StaticDirectory, ino uint64, children map[string]kernfs.Inode) {
	d.Init(ctx, n.creds, n.major, n.minor, ino, sysDirMode, kernfs.GenericDirectoryFDOptions{SeekEnd: kernfs.SeekEndStaticEntries})
	d.InitRefs()
	d.OrderedChildren.Init(kernfs.OrderedChildrenOptions{})
	d.IncLinks(d.Populate(children))
}

func (n *netSysfs) link(ctx context.Context, ino uint64, target string) kernfs.Inode {
	l := &staticLink{}
	l.Init(ctx, n.creds, n.major, n.minor, ino, target)
	return l
}

// interfaceLink is the link to an interface, as long as there is one.
type interfaceLink struct {
	staticLink
	net *netSysfs
	of  netInterface
}

// Valid implements kernfs.Inode.
func (l *interfaceLink) Valid(context.Context, *kernfs.Dentry, string) bool {
	return findInterface(l.net.stack, l.of.Name).index == l.of.index
}

// interfaceDir is the directory of an interface, as long as it has the same entries.
type interfaceDir struct {
	staticDir
	net    *netSysfs
	of     netInterface
	master string
	ports  []string
}

// Valid implements kernfs.Inode.
func (d *interfaceDir) Valid(context.Context, *kernfs.Dentry, string) bool {
	all := d.net.list()
	return slices.ContainsFunc(all, func(now netInterface) bool {
		return now.index == d.of.index && now.Name == d.of.Name && now.master(all).Name == d.master
	}) && slices.Equal(d.of.ports(all), d.ports)
}

// master is the one of all interfaces that another is a port of; its index is 0 if
// there is none.
func (i netInterface) master(all []netInterface) netInterface {
	n := slices.IndexFunc(all, func(m netInterface) bool { return i.Master != 0 && uint32(m.index) == i.Master })
	if n < 0 {
		return netInterface{}
	}
	return all[n]
}

// ports are the names of those of all interfaces that are a bridge's.
func (i netInterface) ports(all []netInterface) []string {
	var names []string
	for _, port := range all {
		if port.Master == uint32(i.index) {
			names = append(names, port.Name)
		}
	}
	return names
}

// interfacesDir is a directory with an entry for each interface.
type interfacesDir struct {
	kernfs.InodeAlwaysValid
	kernfs.InodeAttrs
	kernfs.InodeDirectoryNoNewChildren
	kernfs.InodeFSOwned
	kernfs.InodeNoopRefCount
	kernfs.InodeNotAnonymous
	kernfs.InodeNotSymlink
	kernfs.InodeTemporary
	kernfs.InodeWatches
	inSysfs
	kernfs.OrderedChildren // Empty: it is what generic directories need.

	locks vfs.FileLocks
	net   *netSysfs
	links bool
}

func (n *netSysfs) interfaces(ctx context.Context, ino uint64, links bool) kernfs.Inode {
	d := &interfacesDir{net: n, links: links}
	d.InodeAttrs.Init(ctx, n.creds, n.major, n.minor, ino, linux.ModeDirectory|sysDirMode)
	d.OrderedChildren.Init(kernfs.OrderedChildrenOptions{})
	return d
}

// Lookup implements kernfs.Inode.
func (d *interfacesDir) Lookup(ctx context.Context, name string) (kernfs.Inode, error) {
	i := findInterface(d.net.stack, name)
	if i.index == 0 {
		return nil, linuxerr.ENOENT
	}
	if d.links {
		l := &interfaceLink{net: d.net, of: i}
		l.Init(ctx, d.net.creds, d.net.major, d.net.minor, i.ino(0), "../../devices/virtual/net/"+name)
		return l, nil
	}
	return d.net.device(ctx, i), nil
}

// IterDirents implements kernfs.Inode. What was listed of what is there is told by the
// indexes of interfaces, which only grow.
func (d *interfacesDir) IterDirents(_ context.Context, _ *vfs.Mount, callback vfs.IterDirentsCallback, offset, relOffset int64) (int64, error) {
	first := offset - relOffset
	for _, i := range d.net.list() {
		if int64(i.index) <= relOffset {
			continue
		}
		entry := vfs.Dirent{Name: i.Name, Type: linux.DT_DIR, Ino: i.ino(1), NextOff: first + int64(i.index)}
		if d.links {
			entry.Type, entry.Ino = linux.DT_LNK, i.ino(0)
		}
		if err := callback.Handle(entry); err != nil {
			return offset, err
		}
		offset = entry.NextOff
	}
	return offset, nil
}

// HasChildren implements kernfs.Inode.
func (d *interfacesDir) HasChildren() bool { return len(d.net.list()) > 0 }

// Open implements kernfs.Inode.
func (d *interfacesDir) Open(_ context.Context, rp *vfs.ResolvingPath, dentry *kernfs.Dentry, opts vfs.OpenOptions) (*vfs.FileDescription, error) {
	fd, err := kernfs.NewGenericDirectoryFD(rp.Mount(), dentry, rp.Credentials(), &d.OrderedChildren, &d.locks, &opts, kernfs.GenericDirectoryFDOptions{SeekEnd: kernfs.SeekEndZero})
	if err != nil {
		return nil, err
	}
	return fd.VFSFileDescription(), nil
}

// SetStat implements kernfs.Inode.
func (*interfacesDir) SetStat(context.Context, *vfs.Filesystem, *auth.Credentials, vfs.SetStatOptions) error {
	return linuxerr.EPERM
}

// ino is the number of the nth inode of an interface.
func (i netInterface) ino(n uint64) uint64 { return netInos + uint64(i.index)<<inosBits + n }

// device is the directory of one interface.
func (n *netSysfs) device(ctx context.Context, i netInterface) kernfs.Inode {
	next := uint64(1)
	ino := func() uint64 { next++; return i.ino(next) }
	files := func(names []string, prefix string) map[string]kernfs.Inode {
		made := make(map[string]kernfs.Inode)
		for _, name := range names {
			file := &textFile{}
			file.Init(ctx, n.creds, n.major, n.minor, ino(), &netFile{net: n, device: i.Name, name: prefix + name}, sysFileMode)
			made[name] = file
		}
		return made
	}
	children := files(interfaceFiles, "")
	children["subsystem"] = n.link(ctx, ino(), "../../../../class/net")
	children["statistics"] = n.dir(ctx, ino(), files(interfaceStatistics, "statistics/"))
	all := n.list()
	ports := i.ports(all)
	if i.Kind == interfaceKindBridge {
		children["bridge"] = n.dir(ctx, ino(), files([]string{"stp_state", "bridge_id"}, "bridge/"))
		links := make(map[string]kernfs.Inode)
		for _, port := range ports {
			links[port] = n.link(ctx, ino(), "../../"+port+"/brport")
		}
		children["brif"] = n.dir(ctx, ino(), links)
	}
	master := i.master(all)
	if master.index != 0 {
		children["master"] = n.link(ctx, ino(), "../"+master.Name)
	}
	if master.Kind == interfaceKindBridge {
		port := files([]string{"state"}, "brport/")
		port["bridge"] = n.link(ctx, ino(), "../../"+master.Name)
		children["brport"] = n.dir(ctx, ino(), port)
	}
	d := &interfaceDir{net: n, of: i, master: master.Name, ports: ports}
	n.fill(ctx, &d.StaticDirectory, i.ino(1), children)
	return d
}

// interfaceFiles are those of every interface.
var interfaceFiles = []string{
	"addr_assign_type", "addr_len", "address", "broadcast", "carrier", "dev_id", "dev_port", "dormant", "duplex", "flags",
	"ifalias", "ifindex", "iflink", "link_mode", "mtu", "name_assign_type", "netdev_group", "operstate", "proto_down", "speed", "tx_queue_len", "type", "uevent",
}

// interfaceStatistics are the counters, in the order of inet.StatDev.
var interfaceStatistics = []string{
	"rx_bytes", "rx_packets", "rx_errors", "rx_dropped", "rx_fifo_errors", "rx_frame_errors", "rx_compressed", "multicast",
	"tx_bytes", "tx_packets", "tx_errors", "tx_dropped", "tx_fifo_errors", "collisions", "tx_carrier_errors", "tx_compressed",
	// And what has none there.
	"rx_crc_errors", "rx_length_errors", "rx_missed_errors", "rx_nohandler", "rx_over_errors", "tx_aborted_errors", "tx_heartbeat_errors",
	"tx_window_errors",
}

// netFile is one file.
type netFile struct {
	net          *netSysfs
	device, name string
}

// Generate implements vfs.DynamicBytesSource.
func (f *netFile) Generate(_ context.Context, buf *bytes.Buffer) error {
	i := findInterface(f.net.stack, f.device)
	if i.index == 0 {
		return linuxerr.ENODEV
	}
	if counter, ok := strings.CutPrefix(f.name, "statistics/"); ok {
		var counters inet.StatDev
		if err := f.net.stack.Statistics(&counters, i.Name); err != nil {
			return linuxerr.ENODEV
		}
		var count uint64
		if n := slices.Index(interfaceStatistics, counter); n < len(counters) {
			count = counters[n]
		}
		fmt.Fprintln(buf, count)
		return nil
	}
	text, err := i.attribute(f.name)
	buf.WriteString(text)
	return err
}

// attribute is the text of a file.
func (i netInterface) attribute(name string) (string, error) {
	loopback := i.Flags&linux.IFF_LOOPBACK != 0
	up := i.Flags&linux.IFF_UP != 0
	switch name {
	case "addr_assign_type", "dev_port", "dormant", "link_mode", "netdev_group", "proto_down", "bridge/stp_state":
		return "0\n", nil
	case "name_assign_type": // By the kernel, or by a program.
		if loopback {
			return "2\n", nil
		}
		return "3\n", nil
	case "dev_id":
		return "0x0\n", nil
	case "ifalias":
		return "", nil
	case "addr_len":
		return fmt.Sprintln(len(i.hardware())), nil
	case "address":
		return i.hardware().String() + "\n", nil
	case "broadcast":
		if loopback {
			return net.HardwareAddr(make([]byte, 6)).String() + "\n", nil
		}
		return net.HardwareAddr(bytes.Repeat([]byte{0xff}, 6)).String() + "\n", nil
	case "bridge/bridge_id":
		return fmt.Sprintf("8000.%x\n", []byte(i.hardware())), nil
	case "brport/state":
		return portForwarding, nil
	case "carrier":
		if !up {
			return "", linuxerr.EINVAL
		}
		return fmt.Sprintln(number(i.Flags&linux.IFF_RUNNING != 0)), nil
	case "duplex", "speed":
		if loopback || !up {
			return "", linuxerr.EINVAL
		}
		if name == "speed" {
			return "10000\n", nil
		}
		if i.Kind == interfaceKindBridge {
			return "unknown\n", nil
		}
		return "full\n", nil
	case "flags":
		return fmt.Sprintf("%#x\n", i.Flags&deviceFlags), nil
	case "ifindex", "iflink":
		return fmt.Sprintln(i.index), nil
	case "mtu":
		return fmt.Sprintln(i.MTU), nil
	case "operstate":
		switch {
		case !up:
			return "down\n", nil
		case loopback:
			return "unknown\n", nil
		}
		return "up\n", nil
	case "tx_queue_len":
		return transmitQueueLength, nil
	case "type":
		return fmt.Sprintln(i.DeviceType), nil
	case "uevent":
		kind := ""
		if i.Kind == interfaceKindBridge {
			kind = "DEVTYPE=bridge\n"
		}
		return fmt.Sprintf("%sINTERFACE=%s\nIFINDEX=%d\n", kind, i.Name, i.index), nil
	}
	return "", linuxerr.EIO
}

// hardware is an interface's address; the loopback has one, and tunnels have none.
func (i netInterface) hardware() net.HardwareAddr {
	if i.Flags&linux.IFF_LOOPBACK != 0 {
		return make([]byte, 6)
	}
	return i.Addr
}
