// SPDX-License-Identifier: Apache-2.0

// Ids and names.

package state

import (
	"crypto/rand"
	"encoding/hex"
	"math/big"
	"strings"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	// idBytes makes docker's 64-digit ids.
	idBytes = 32
	// maxNameBytes keeps a name a file name, with room to spare.
	maxNameBytes = 128
)

// NewID returns a random container id.
func NewID() string {
	b := make([]byte, idBytes)
	rand.Read(b) // Never fails: the Go runtime ends the process instead.
	return hex.EncodeToString(b)
}

// isID reports whether s has the form of a container id. By hand, like
// checkName: compiling an expression takes longer than a sandbox can spare.
func isID(s string) bool {
	return len(s) == 2*idBytes && strings.Trim(s, "0123456789abcdef") == ""
}

func isNameByte(c byte) bool {
	return isAlphanumeric(c) || c == '_' || c == '.' || c == '-'
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func checkName(name string) error {
	ok := len(name) >= 2 && len(name) <= maxNameBytes && isAlphanumeric(name[0])
	for i := 1; ok && i < len(name); i++ {
		ok = isNameByte(name[i])
	}
	if !ok {
		return api.Errorf(api.KindInvalid, "Invalid container name (%s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed, at most %d characters", name, maxNameBytes)
	}
	return nil
}

// MaxTaskIDBytes is what runc takes.
const MaxTaskIDBytes = 255

// CheckTaskID refuses what runc refuses as the id of a container.
func CheckTaskID(id string) error {
	ok := id != "" && len(id) <= MaxTaskIDBytes && id != "." && id != ".."
	for i := 0; ok && i < len(id); i++ {
		ok = isNameByte(id[i]) || id[i] == '+'
	}
	if !ok {
		return api.Errorf(api.KindInvalid, "invalid container ID format: %q: want at most %d of [a-zA-Z0-9_+.-], and neither . nor ..", id, MaxTaskIDBytes)
	}
	return nil
}

// checkName checks a container's name, which for a bundle is the id that its
// engine gave it.
func (r *Record) checkName() error {
	if r.Task != nil {
		return CheckTaskID(r.Name)
	}
	return checkName(r.Name)
}

// Words for names that nobody chose: things seen on a walk.
var (
	adjectives = []string{
		"amber", "ample", "bold", "brisk", "calm", "clear", "crisp", "dapper", "deft", "eager",
		"early", "fair", "fond", "frosty", "gentle", "golden", "hardy", "hushed", "jolly", "keen",
		"kind", "lively", "lucid", "mellow", "merry", "mild", "misty", "neat", "nimble", "noble",
		"patient", "placid", "plucky", "polite", "prompt", "quiet", "rapid", "ready", "rosy", "rustic",
		"serene", "silver", "sleepy", "snug", "sober", "spry", "steady", "sturdy", "sunny", "swift",
		"tidy", "tranquil", "trusty", "vivid", "warm", "wary", "windy", "wise", "witty", "zesty",
	}
	nouns = []string{
		"acorn", "alder", "aspen", "badger", "beech", "birch", "bramble", "brook", "cedar", "clover",
		"comet", "coral", "cove", "crane", "creek", "curlew", "dune", "elm", "ember", "falcon",
		"fern", "finch", "fjord", "fox", "glade", "grove", "harbor", "hazel", "heron", "hollow",
		"island", "ivy", "juniper", "kestrel", "lagoon", "lark", "linden", "lynx", "maple", "marsh",
		"meadow", "moss", "otter", "owl", "pebble", "pine", "plover", "pond", "quail", "raven",
		"reed", "ridge", "robin", "rowan", "sorrel", "sparrow", "spruce", "thistle", "willow", "wren",
	}
)

// randomName returns a name as docker would invent one. From the third attempt
// on it carries digits: with many containers the plain ones run out.
func randomName(attempt int) string {
	pick := func(n int) int {
		i, err := rand.Int(rand.Reader, big.NewInt(int64(n)))
		if err != nil {
			panic("state: no randomness: " + err.Error())
		}
		return int(i.Int64())
	}
	name := adjectives[pick(len(adjectives))] + "_" + nouns[pick(len(nouns))]
	if attempt >= 2 {
		b := make([]byte, attempt)
		rand.Read(b)
		name += "_" + hex.EncodeToString(b)
	}
	return name
}
