// SPDX-License-Identifier: Apache-2.0

// Attribute lists as the builder stores them: all inline, each encoded once.

package erofs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// encodeXattrs encodes a list as it follows an inode, in the order of names.
func encodeXattrs(xattrs map[string]string) (string, error) {
	if len(xattrs) == 0 {
		return "", nil
	}
	b := make([]byte, xattrHeaderSize, xattrHeaderSize+64)
	for _, name := range slices.Sorted(maps.Keys(xattrs)) {
		value := xattrs[name]
		index, suffix, err := splitXattrName(name)
		if err != nil {
			return "", err
		}
		if len(value) > MaxXattrValueBytes {
			return "", fmt.Errorf("%w: attribute %q has %d bytes, at most %d", ErrLimit, name, len(value), MaxXattrValueBytes)
		}
		b = append(b, byte(len(suffix)), index, byte(len(value)), byte(len(value)>>8))
		b = append(b, suffix...)
		b = append(b, value...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		if len(b) > maxXattrBody {
			return "", fmt.Errorf("%w: more than %d bytes of attributes", ErrLimit, maxXattrBody)
		}
	}
	return string(b), nil
}

// splitXattrName finds the prefix index of a full attribute name.
func splitXattrName(name string) (index byte, suffix string, err error) {
	if len(name) > MaxXattrNameBytes || strings.IndexByte(name, 0) >= 0 {
		return 0, "", fmt.Errorf("%w: attribute name %.300q", ErrInvalid, name)
	}
	for i, prefix := range shortPrefixes {
		suffix, ok := strings.CutPrefix(name, prefix)
		if !ok || prefix == "" || i == xattrIndexLustre {
			continue
		}
		// The ACL names are whole; the others need something behind the dot.
		if whole := !strings.HasSuffix(prefix, "."); whole == (suffix == "") {
			return byte(i), suffix, nil
		}
	}
	return 0, "", fmt.Errorf("%w: attribute %.300q is none of user, trusted, security or POSIX ACL", ErrInvalid, name)
}

// decodeXattrs is the inverse of encodeXattrs, for lists it has made.
func decodeXattrs(list string) map[string]string {
	if list == "" {
		return nil
	}
	xattrs := make(map[string]string)
	for rest := list[xattrHeaderSize:]; rest != ""; {
		nameEnd := xattrEntrySize + int(rest[0])
		valueEnd := nameEnd + int(rest[2]) + int(rest[3])<<8
		xattrs[shortPrefixes[rest[1]]+rest[xattrEntrySize:nameEnd]] = rest[nameEnd:valueEnd]
		rest = rest[(valueEnd+3)&^3:]
	}
	return xattrs
}
