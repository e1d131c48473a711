// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"slices"
	"strings"
)

// module is the path of this module.
const module = "z.gfire.dev/gvx"

// rule forbids some packages to import some others.
type rule struct {
	// who are the packages that the rule binds: patterns relative to the
	// module's root, "x/..." for x and all below it.
	who []string
	// except are packages that who matches and the rule does not bind.
	except []string
	// never are the imports forbidden: full import paths, or patterns that
	// begin with "./" for packages of this module.
	never []string
	// transitive extends the rule to what our own imports import.
	transitive bool
	// why is printed with a violation.
	why string
}

// sentrySide are the packages that run inside the sandbox process, or serve it,
// and so may link the Sentry.
var sentrySide = []string{"runtime/boot/...", "runtime/gofer/...", "ext4lite/sentryfs/...", "oci/erofs/sentryfs/...", "runtime/sentryfs/..."}

// clientHalf are the packages that have to build on macOS and Windows.
var clientHalf = []string{"oci/...", "pkg/...", "ext4lite/...", "runtime/api/...", "runtime/control/...",
	"runtime/cli/...", "runtime/images/...", "runtime/state/...", "runtime/volumes/..."}

// rules are the import rules of the design, each with its reason.
var rules = []rule{
	{
		who: []string{"..."}, except: append([]string{"cmd/rungv", "integration/..."}, sentrySide...),
		never: []string{"gvisor.dev/gvisor/pkg/sentry/...", "gvisor.dev/gvisor/runsc/..."},
		why:   "only the sandbox process and the gofer link the Sentry: the host half must stay small, portable and free of its init cost",
	},
	{
		who: clientHalf, except: sentrySide,
		never: []string{"gvisor.dev/gvisor/..."},
		why:   "the client half builds on macOS and Windows, and the SDK's users must not link gVisor",
	},
	{
		who: []string{"pkg/..."}, never: []string{"gvisor.dev/gvisor/..."}, transitive: true,
		why: "programs that use the SDK exec rungv; they must not link gVisor through any path",
	},
	{
		who: []string{"runtime/boot/..."},
		never: []string{"./runtime/cli/...", "./runtime/container/...", "./runtime/launch/...", "./runtime/images/...",
			"./runtime/volumes/...", "./runtime/checkpoints/...", "./runtime/state/...", "./runtime/usernet/...",
			"./oci/image/...", "./oci/layer/...", "./oci/convert/...", "./oci/bundle/...", "./shim/...", "./pkg/...",
			"net/http", "github.com/google/go-containerregistry/..."},
		transitive: true,
		why:        "the sandbox process opens nothing and dials nobody: host-side verbs in it would be attack surface and boot time",
	},
	{
		who: []string{"oci/..."}, except: []string{"oci/erofs/sentryfs/..."},
		never: []string{"./runtime/boot/...", "./runtime/cli/...", "./runtime/container/...", "./runtime/launch/...",
			"./runtime/images/...", "./runtime/volumes/...", "./runtime/checkpoints/...", "./runtime/state/...",
			"./runtime/usernet/...", "./runtime/lockdown/...", "./runtime/gofer/...", "./runtime/control/...", "./shim/...", "./pkg/..."},
		why: "oci is pure conversion: of runtime it knows the data types of api and nothing else",
	},
	{
		who: []string{"ext4lite/..."}, except: []string{"ext4lite/sentryfs/..."},
		never: []string{"./runtime/...", "./oci/...", "./shim/...", "./pkg/...", "./cmd/..."},
		why:   "ext4lite is a library of its own: nothing of gvx in it, so that others can use it and it stays testable alone",
	},
	{
		who:   []string{"runtime/api"},
		never: []string{"./...", "golang.org/x/...", "github.com/...", "google.golang.org/...", "gvisor.dev/..."},
		why:   "api is data that every package on every system imports: standard library only",
	},
	{
		who: []string{"..."}, except: []string{"integration/...", "install/..."},
		never: []string{"./integration/...", "./install/..."},
		why:   "the product never depends on its tests or on build tools",
	},
	{
		who: []string{"..."}, except: []string{"shim/...", "cmd/containerd-shim-gvx-v2", "integration/..."},
		never: []string{"github.com/containerd/errdefs/...", "github.com/containerd/containerd/..."},
		why:   "containerd's words stay in the shim; everything below it speaks the error kinds of runtime/api",
	},
	{
		who: []string{"..."}, except: []string{"cmd/...", "runtime/cli/...", "integration/..."},
		never: []string{"github.com/spf13/cobra"},
		why:   "flags are the command line's business: below it, options are Go values",
	},
}

// layers is the direction of imports inside the module, lowest first: a package
// imports its own layer and lower ones. Packages in no layer are bound by rules
// alone.
var layers = [][]string{
	{"runtime/api"},
	{"runtime/control/...", "runtime/lockdown/...", "runtime/usernet/...", "ext4lite/...", "oci/..."},
	{"runtime/state/...", "runtime/images/...", "runtime/volumes/...", "runtime/checkpoints/...", "runtime/launch/...", "runtime/gofer/..."},
	{"runtime/container/..."},
	{"runtime/cli/...", "shim/..."},
	{"cmd/..."},
}

// layerOf returns the index of the layer that holds the package, or -1.
func layerOf(pkg string) int {
	for i, patterns := range layers {
		if matchAny(patterns, pkg) {
			return i
		}
	}
	return -1
}

// matchAny says whether one of the patterns matches path.
func matchAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return match(pattern, path) })
}

// match says whether pattern, as in "go list", matches the slash-separated path.
func match(pattern, path string) bool {
	if pattern == "..." {
		return true
	}
	if root, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == root || strings.HasPrefix(path, root+"/")
	}
	return pattern == path
}

// forbids says whether the rule forbids the import path.
func (r *rule) forbids(importPath string) bool {
	relative, own := relativePath(importPath)
	return slices.ContainsFunc(r.never, func(pattern string) bool {
		if inside, ok := strings.CutPrefix(pattern, "./"); ok {
			return own && match(inside, relative)
		}
		return !own && match(pattern, importPath)
	})
}

// binds says whether the rule is about the package.
func (r *rule) binds(pkg string) bool {
	return matchAny(r.who, pkg) && !matchAny(r.except, pkg)
}

// relativePath strips the module's path.
func relativePath(importPath string) (string, bool) {
	if importPath == module {
		return "", true
	}
	return strings.CutPrefix(importPath, module+"/")
}
