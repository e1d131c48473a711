// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package lockdown

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
)

const (
	// minKernel is the oldest kernel whose system calls the allow-list and the
	// Sentry's platform rely on: 5.6 brought the last of them into use.
	minKernelMajor, minKernelMinor = 5, 6
	// lowDiskBytes is where doctor warns: an ordinary image and what an
	// episode writes fit into it.
	lowDiskBytes = 5 << 30
	// fsCgroup2 is the file-system type of cgroup v2.
	fsCgroup2 = 0x63677270
)

// Doctor finds out which layers hold on this host for this user, and what else
// sandboxes can use. dir is the directory of the stores, for the questions
// about its disk; it may not exist yet. It starts no program, but tries
// namespaces and a seccomp listener for real.
func Doctor(dir string) []Layer {
	o := PlanOuter(DefaultUIDBase)
	refusal := o.granted()
	if refusal != nil {
		o = o.Without()
	}
	layers := []Layer{kernelLayer(), nestingLayer(), uidLayer(o),
		{LayerNoNewPrivs, StateUsed, "", "no program can raise the sandbox' privileges", false},
		{LayerCapabilities, StateUsed, "", "the sandbox process holds no capability, in no set", false},
		seccompLayer(), notifyLayer(), ptraceLayer()}
	layers = append(layers, namespaceLayers(o, refusal)...)
	layers = append(layers, landlockLayer(o), memfdLayer(), cgroupLayer())
	return append(layers, diskLayers(dir)...)
}

func kernelLayer() Layer {
	l := Layer{Name: "kernel", State: StateUsed, Fatal: true, Meaning: fmt.Sprintf("Linux %d.%d or newer is needed", minKernelMajor, minKernelMinor)}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		l.State, l.Detail = StateMissing, err.Error()
		return l
	}
	l.Detail = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	var major, minor int
	if _, err := fmt.Sscanf(l.Detail, "%d.%d", &major, &minor); err != nil || major < minKernelMajor || major == minKernelMajor && minor < minKernelMinor {
		l.State = StateMissing
	}
	return l
}

func nestingLayer() Layer {
	if DetectGVisor() {
		return Layer{"host is Linux itself", StateMissing, "gVisor", "this is a gVisor sandbox: its signals do not say what went wrong, and the platform needs to know; run gvx outside of runsc", true}
	}
	return Layer{"host is Linux itself", StateUsed, "", "not inside another gVisor", true}
}

func uidLayer(o *Outer) Layer {
	switch {
	case o.UID != 0:
		return Layer{LayerUID, StateUsed, fmt.Sprintf("from %d", DefaultUIDBase), "each sandbox drops to a uid that nothing else has", false}
	case os.Geteuid() != 0:
		return Layer{LayerUID, StateUsed, fmt.Sprint(os.Geteuid()), "sandboxes run as you: among your own processes, the other layers keep them apart", false}
	}
	return Layer{LayerUID, StateMissing, "root without CAP_SETUID", "sandboxes run as a root without capabilities: give CAP_SETUID and CAP_SETGID, or start gvx as another user", false}
}

func seccompLayer() Layer {
	l := Layer{Name: LayerSeccomp, State: StateUsed, Fatal: true, Meaning: "the Sentry may make a few dozen system calls, none of which opens, connects or executes; any other ends it"}
	if !actionAvailable(uint32(linux.SECCOMP_RET_KILL_PROCESS)) {
		l.State, l.Detail = StateMissing, "no SECCOMP_RET_KILL_PROCESS"
		l.Meaning = "no guest is run without the allow-list: use a kernel with CONFIG_SECCOMP_FILTER"
		return l
	}
	l.Detail = fmt.Sprintf("%d instructions", len(program.insns))
	return l
}

func notifyLayer() Layer {
	n, err := ProbeNotify()
	l := Layer{Name: "seccomp-notify", State: StateUsed, Detail: n.String(), Meaning: "the platform hands system calls to its stubs the fast way"}
	switch {
	case err != nil:
		l.State, l.Detail = StateMissing, err.Error()
		fallthrough
	case n != NotifyFree:
		l.State = StateMissing
		l.Meaning = "the platform uses its futex loop: slower, not less safe"
	}
	return l
}

func ptraceLayer() Layer {
	l := Layer{Name: "ptrace", State: StateUsed, Fatal: true, Meaning: "the platform may trace its own children, which is all it needs"}
	switch l.Detail = "Yama scope " + readSwitch("/proc/sys/kernel/yama/ptrace_scope"); l.Detail {
	case "Yama scope ":
		l.Detail = "no Yama"
		l.Meaning += "; processes of one uid can trace each other here, except sandboxes, which are not dumpable"
	case "Yama scope 2", "Yama scope 3":
		l.State = StateMissing
		l.Meaning = "the platform cannot attach to its stubs: set kernel.yama.ptrace_scope to 1"
	}
	return l
}

// namespaceLayers has a line for user namespaces and one for each of the rest.
func namespaceLayers(o *Outer, refusal error) []Layer {
	meanings := map[string]string{
		"user": "the sandbox' uid is the only one it can name",
		"pid":  "the sandbox sees and signals its own processes only",
		"net":  "the sandbox has no network interface, no abstract socket of the host",
		"ipc":  "no System V or POSIX queue of the host",
		"mnt":  "its mounts, and its empty root, are its own",
		"uts":  "its host name is its own",
	}
	var out []Layer
	for _, ns := range namespaceFlags {
		l := Layer{Name: ns.name + " namespace", State: StateUsed, Meaning: meanings[ns.name]}
		if !slices.Contains(o.Namespaces, ns.name) {
			l.State = StateMissing
			switch {
			case ns.name == "user" && len(o.Namespaces) > 0:
				l.State, l.Meaning = StatePresent, "not needed: you may make the others directly"
			case refusal != nil:
				l.Detail = refusal.Error()
				l.Meaning += "; without it the allow-list alone keeps that shut"
			default:
				l.Detail = "user namespaces are switched off for you"
				l.Meaning += "; without it the allow-list alone keeps that shut"
			}
		}
		out = append(out, l)
	}
	root := Layer{Name: LayerEmptyRoot, State: StateUsed, Meaning: "no path leads to a file of the host"}
	if !o.EmptyRoot {
		root.State = StateMissing
		root.Meaning = "needs a mount namespace; without it the allow-list alone keeps the sandbox from opening files"
	}
	return append(out, root)
}

func landlockLayer(o *Outer) Layer {
	abi := LandlockABI()
	l := Layer{Name: "landlock", State: StateUsed, Detail: fmt.Sprintf("ABI %d", abi), Meaning: "the kernel refuses the sandbox files, ports, foreign signals and tracing once more"}
	switch {
	case abi == 0:
		l.State, l.Detail = StateMissing, "not built in, or not in the kernel's lsm= list"
		l.Meaning = "one layer less below the allow-list"
	case o.Landlock == 0:
		l.State = StatePresent
		l.Meaning = "not used beside an empty root: this version could only restrict files, of which there are none"
	case o.EmptyRoot:
		l.Meaning = "the kernel refuses the sandbox ports, foreign signals and tracing once more; files are gone with the empty root"
	}
	return l
}

func memfdLayer() Layer {
	fd, err := unix.MemfdCreate("gvx-doctor", unix.MFD_CLOEXEC)
	if err != nil {
		return Layer{"memfd", StateMissing, err.Error(), "guest memory lives in a memfd: no sandbox can run", true}
	}
	unix.Close(fd)
	return Layer{"memfd", StateUsed, "", "guest memory lives in a memory file without a name", true}
}

// cgroupLayer asks whether this user could put a sandbox into a cgroup.
func cgroupLayer() Layer {
	l := Layer{Name: "cgroup", State: StateMissing, Meaning: "limits are enforced inside the sandbox only; a cgroup of the host would hold it as a whole"}
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		l.Detail = err.Error()
		return l
	}
	dir := "/sys/fs/cgroup"
	l.Detail = "v1"
	if st.Type == fsCgroup2 {
		l.Detail = "v2"
		if b, err := os.ReadFile("/proc/self/cgroup"); err == nil {
			if _, path, ok := strings.Cut(strings.TrimSpace(string(b)), "0::"); ok {
				dir = filepath.Join(dir, path)
			}
		}
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		l.Detail += ", not writable for you"
		return l
	}
	l.State, l.Detail, l.Meaning = StatePresent, l.Detail+", writable", "host limits can be set beside the sandbox' own"
	return l
}

func diskLayers(dir string) []Layer {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	disk := Layer{Name: "disk", State: StateUsed, Meaning: "room for images and volumes"}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		disk.State, disk.Detail = StateMissing, err.Error()
	} else {
		free := st.Bavail * uint64(st.Bsize)
		disk.Detail = fmt.Sprintf("%.1f GiB free at %s", float64(free)/(1<<30), dir)
		if free < lowDiskBytes {
			disk.State = StateMissing
			disk.Meaning = "less than 5 GiB: pulls may fail; free some, or choose another place with --root"
		}
	}
	return []Layer{disk, reflinkLayer(dir)}
}

// reflinkLayer clones a file without a name inside dir.
func reflinkLayer(dir string) Layer {
	l := Layer{Name: "reflink", State: StatePresent, Meaning: "copies of golden volumes share their blocks"}
	err := tryReflink(dir)
	if err != nil {
		l.State, l.Detail = StateMissing, err.Error()
		l.Meaning = "plain copies of volumes take time and space; delta volumes do not need reflinks"
	}
	return l
}

func tryReflink(dir string) error {
	open := func() (*os.File, error) {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, fmt.Errorf("create a file in %s: %w", dir, err)
		}
		return os.NewFile(uintptr(fd), "reflink"), nil
	}
	from, err := open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := open()
	if err != nil {
		return err
	}
	defer to.Close()
	// A block, so that there is something to share.
	if _, err := from.Write(make([]byte, 4096)); err != nil {
		return err
	}
	if err := unix.IoctlFileClone(int(to.Fd()), int(from.Fd())); err != nil {
		return fmt.Errorf("the file system at %s: %w", dir, err)
	}
	return nil
}
