// SPDX-License-Identifier: Apache-2.0

// dockerd's daemon.json.

package nodeconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"z.gfire.dev/gvx/runtime/api"
)

// dockerRuntimes is the member of daemon.json that names runtimes.
const dockerRuntimes = "runtimes"

// dockerRuntime is a runtime of dockerd's.
type dockerRuntime struct {
	Path string `json:"path"`
}

// member is one of an object's, in its place.
type member struct {
	key   string
	value json.RawMessage
}

// object is a JSON object whose members keep their order and their text.
type object []member

// parseObject reads an object; an empty document is an empty one, and so is null.
func parseObject(doc []byte) (object, error) {
	if text := bytes.TrimSpace(doc); len(text) == 0 || string(text) == "null" {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	switch t, err := d.Token(); {
	case err != nil:
		return nil, fmt.Errorf("not a JSON object: %w", err)
	case t != json.Delim('{'):
		return nil, fmt.Errorf("not a JSON object, but %v", t)
	}
	var o object
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, ok := t.(string)
		if !ok {
			return nil, fmt.Errorf("a member without a name")
		}
		if o.find(key) >= 0 {
			return nil, fmt.Errorf("%q is there twice", key)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		o = append(o, member{key, value})
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("text behind the object")
	}
	return o, nil
}

func (o object) find(key string) int {
	return slices.IndexFunc(o, func(m member) bool { return m.key == key })
}

// set gives a member a value, in its place or at the end.
func (o object) set(key string, value json.RawMessage) object {
	if i := o.find(key); i >= 0 {
		o[i].value = value
		return o
	}
	return append(o, member{key, value})
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// write writes a whole document as people have it.
func (o object) write() ([]byte, error) {
	doc, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(doc, '\n'), nil
}

// AddDocker adds a runtime, the program at path, to daemon.json. changed says whether
// that was to be done. A runtime of this name that is something else is an error of
// KindExists.
func AddDocker(doc []byte, name, path string) (out []byte, changed bool, err error) {
	whole, runtimes, err := dockerRuntimesOf(doc)
	if err != nil {
		return nil, false, err
	}
	if i := runtimes.find(name); i >= 0 {
		var old dockerRuntime
		if err := json.Unmarshal(runtimes[i].value, &old); err != nil || old.Path != path {
			return nil, false, api.Errorf(api.KindExists, "daemon.json has a runtime %q, which is %s: remove it, or choose another name", name, runtimes[i].value)
		}
		return doc, false, nil
	}
	entry, err := json.Marshal(dockerRuntime{path})
	if err != nil {
		return nil, false, err
	}
	list, err := json.Marshal(runtimes.set(name, entry))
	if err != nil {
		return nil, false, err
	}
	out, err = whole.set(dockerRuntimes, list).write()
	return out, true, err
}

// RemoveDocker takes from daemon.json what AddDocker has added.
func RemoveDocker(doc []byte, name, path string) (out []byte, changed bool, err error) {
	whole, runtimes, err := dockerRuntimesOf(doc)
	if err != nil {
		return nil, false, err
	}
	i := runtimes.find(name)
	if i < 0 {
		return doc, false, nil
	}
	var old dockerRuntime
	if err := json.Unmarshal(runtimes[i].value, &old); err != nil || old.Path != path {
		return nil, false, api.Errorf(api.KindExists, "daemon.json has a runtime %q that is not this one: %s", name, runtimes[i].value)
	}
	if runtimes = slices.Delete(runtimes, i, i+1); len(runtimes) > 0 {
		list, err := json.Marshal(runtimes)
		if err != nil {
			return nil, false, err
		}
		whole = whole.set(dockerRuntimes, list)
	} else {
		k := whole.find(dockerRuntimes)
		whole = slices.Delete(whole, k, k+1)
	}
	out, err = whole.write()
	return out, true, err
}

// dockerRuntimesOf takes daemon.json apart.
func dockerRuntimesOf(doc []byte) (whole, runtimes object, err error) {
	if err := checkSize("daemon.json", doc); err != nil {
		return nil, nil, err
	}
	if whole, err = parseObject(doc); err != nil {
		return nil, nil, api.Errorf(api.KindInvalid, "daemon.json: %w", err)
	}
	if i := whole.find(dockerRuntimes); i >= 0 {
		if runtimes, err = parseObject(whole[i].value); err != nil {
			return nil, nil, api.Errorf(api.KindInvalid, "daemon.json: %s: %w", dockerRuntimes, err)
		}
	}
	return whole, runtimes, nil
}
