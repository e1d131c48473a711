// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"z.gfire.dev/gvx/integration/testbed"
)

// program copies a program of the test bed, with the libraries that it is linked
// to, into a directory for guests.
func (b *bed) program(name string) (dir string) {
	b.Helper()
	return b.copyProgram(name, testbed.Need(b.T, name))
}

// copyProgram is program for one that lies anywhere.
func (b *bed) copyProgram(name, path string) (dir string) {
	b.Helper()
	linked, err := exec.Command("ldd", path).Output()
	if err != nil {
		b.Fatalf("ldd %s: %v", path, err)
	}
	files := map[string]string{name: path}
	for line := range strings.Lines(string(linked)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[1] == "=>" && filepath.IsAbs(fields[2]) {
			files[filepath.Base(fields[2])] = fields[2]
		}
	}
	dir = b.path("tools")
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	for to, from := range files {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), data, 0o755)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// TestStressInTheGuest runs fsstress on a volume, on a clone of it, and on both
// at once with an overlay.
func TestStressInTheGuest(t *testing.T) {
	operations, seeds := 1000, 1
	if testbed.Nightly() {
		operations, seeds = 20000, 10
	}
	b := newBed(t)
	tools := b.program("fsstress")
	script := func(dir string, seed int) string {
		return fmt.Sprintf("mkdir -p %s && LD_LIBRARY_PATH=/tools /tools/fsstress -d %s -s %d -n %d -p 4 > /tmp/out 2>&1 || { tail -n 50 /tmp/out; exit 1; }\n", dir, dir, seed, operations)
	}
	flags := func(more ...string) []string {
		return []string{"-v", tools + ":/tools:ro", "--tmpfs", "/tmp", "--mount", b.mount("v.ext4", more...)}
	}
	for seed := range seeds {
		b.must(script("/v/a", seed+1), flags("size=2g")...)
		b.check(b.path("v.ext4"))
		b.must(script("/v/a", seed+100), flags("clone=ephemeral")...)
		b.must("set -e; mkdir -p /v/l /v/u /v/w /v/m; mount -t overlay o -o lowerdir=/v/a:/v/l,upperdir=/v/u,workdir=/v/w /v/m\n"+
			script("/v/m/new", seed+200)+"umount /v/m", flags()...)
		b.check(b.path("v.ext4"))
	}
}

// TestAVolumeIsExt4: what programs ask to learn what they are on, and programs
// that are run from it.
func TestAVolumeIsExt4(t *testing.T) {
	b := newBed(t)
	out := b.must(`set -e
awk '$2 == "/v" { print $3 }' /proc/mounts
stat -f -c '%T %t %l %s' /v
cp /bin/echo /v/echo; /v/echo run from it
printf '#!/v/echo by\n' > /v/script; chmod 755 /v/script; /v/script
cp /v/echo /v/other; chmod 644 /v/other; /v/other 2>/dev/null || echo refused
rm /v/echo; cp /bin/true /v/echo; /v/echo; echo replaced`, "--mount", b.mount("v.ext4", "size=64m"))
	if want := "ext4\next2/ext3 ef53 255 4096\nrun from it\nby /v/script\nrefused\nreplaced\n"; out != want {
		t.Errorf("output %q, want %q", out, want)
	}
	if r := b.sh(`/v/echo`, "--mount", b.mount("v.ext4", "clone=ephemeral")); r.Code != 0 {
		t.Errorf("a program on a clone: %v", r)
	}
}
