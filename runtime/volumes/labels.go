// SPDX-License-Identifier: Apache-2.0

// Labels: what people note about a volume of the store, in a file beside it.

package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	extLabels = ".json"
	// labelsVersion is the version of the file that this package writes.
	labelsVersion = 1
	// maxLabelsBytes bounds the labels of a volume.
	maxLabelsBytes = 1 << 20
)

type labelsFile struct {
	Version int               `json:"version"`
	Labels  map[string]string `json:"labels"`
}

func (s *Store) labelsPath(name string) string { return filepath.Join(s.root, name+extLabels) }

// writeLabels gives a new volume its labels, in the place of those of a former
// one that was removed by other means.
func (s *Store) writeLabels(name string, labels map[string]string) error {
	if len(labels) == 0 {
		if err := os.Remove(s.labelsPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return hostError("label volume "+name, err)
		}
		return nil
	}
	doc, err := json.Marshal(labelsFile{labelsVersion, labels})
	if err == nil && len(doc) > maxLabelsBytes {
		return api.Errorf(api.KindLimit, "label volume %s: %d bytes of labels, at most %d", name, len(doc), maxLabelsBytes)
	}
	if err == nil {
		err = replaceFile(s.labelsPath(name), doc)
	}
	if err != nil {
		return hostError("label volume "+name, err)
	}
	return nil
}

// readLabels returns nil for a volume without labels.
func (s *Store) readLabels(name string) (map[string]string, error) {
	f, err := os.Open(s.labelsPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, hostError("read the labels of volume "+name, err)
	}
	defer f.Close()
	doc, err := io.ReadAll(io.LimitReader(f, maxLabelsBytes))
	var l labelsFile
	if err == nil {
		err = json.Unmarshal(doc, &l)
	}
	if err == nil && l.Version != labelsVersion {
		err = fmt.Errorf("version %d, this program knows %d", l.Version, labelsVersion)
	}
	if err != nil {
		return nil, api.Errorf(api.KindInternal, "read the labels of volume %s: %w: remove %s", name, err, f.Name())
	}
	return l.Labels, nil
}
