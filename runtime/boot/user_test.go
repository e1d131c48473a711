// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"strings"
	"testing"

	"z.gfire.dev/gvx/runtime/api"
)

const (
	testPasswd = `root:x:0:0:root:/root:/bin/bash
# a comment
broken line
daemon:x:1:1::/usr/sbin:/usr/sbin/nologin
postgres:x:101:104:PostgreSQL:/var/lib/postgresql:/bin/bash
1234:x:55:66::/home/number:/bin/sh
huge:x:99999999999:0::/:/bin/sh
`
	testGroup = `root:x:0:
postgres:x:104:
ssl-cert:x:103:postgres,daemon
docker:x:999:postgres
broken
`
)

func TestLookupAccount(t *testing.T) {
	for _, c := range []struct {
		form       string
		additional []string
		uid, gid   uint32
		groups     []uint32
		home       string
	}{
		{form: "", uid: 0, gid: 0, home: "/root"},
		{form: "postgres", uid: 101, gid: 104, groups: []uint32{103, 999}, home: "/var/lib/postgresql"},
		{form: "101", uid: 101, gid: 104, groups: []uint32{103, 999}, home: "/var/lib/postgresql"},
		{form: "postgres:root", uid: 101, gid: 0, home: "/var/lib/postgresql"},
		{form: "postgres:4242", uid: 101, gid: 4242, home: "/var/lib/postgresql"},
		{form: "4242", uid: 4242, gid: 0, home: "/"},
		{form: "4242:docker", uid: 4242, gid: 999, home: "/"},
		{form: "daemon", additional: []string{"docker", "7"}, uid: 1, gid: 1, groups: []uint32{103, 999, 7}, home: "/usr/sbin"},
		// A user whose name is a number wins over the number.
		{form: "1234", uid: 55, gid: 66, home: "/home/number"},
	} {
		a, err := lookupAccount(c.form, c.additional, []byte(testPasswd), []byte(testGroup))
		if err != nil {
			t.Errorf("%q: %v", c.form, err)
			continue
		}
		if a.uid != c.uid || a.gid != c.gid || a.home != c.home {
			t.Errorf("%q: got %d:%d home %s, want %d:%d home %s", c.form, a.uid, a.gid, a.home, c.uid, c.gid, c.home)
		}
		if len(a.groups) != len(c.groups) {
			t.Errorf("%q: got groups %v, want %v", c.form, a.groups, c.groups)
			continue
		}
		for i := range c.groups {
			if a.groups[i] != c.groups[i] {
				t.Errorf("%q: got groups %v, want %v", c.form, a.groups, c.groups)
			}
		}
	}
}

func TestLookupAccountRefusesWhatIsNotThere(t *testing.T) {
	for form, want := range map[string]string{
		"nobody":          "unable to find user nobody: no matching entries in passwd file",
		"root:nosuch":     "unable to find group nosuch: no matching entries in group file",
		"huge":            "unable to find user huge",
		"-1":              "unable to find user -1",
		"2147483648":      "unable to find user 2147483648",
		"4294967295":      "unable to find user 4294967295",
		"root:2147483648": "unable to find group 2147483648",
	} {
		_, err := lookupAccount(form, nil, []byte(testPasswd), []byte(testGroup))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", form, err, want)
		}
		if api.KindOf(err) != api.KindInvalid {
			t.Errorf("%q: kind %s, want invalid", form, api.KindOf(err))
		}
	}
}

func FuzzLookupAccount(f *testing.F) {
	f.Add("postgres:ssl-cert", []byte(testPasswd), []byte(testGroup))
	f.Add("0", []byte(":::::::"), []byte("\x00:\x00:1:,,,"))
	f.Fuzz(func(t *testing.T, form string, passwd, group []byte) {
		a, err := lookupAccount(form, nil, passwd, group)
		if err == nil && (a.uid > maxID || a.gid > maxID || a.home == "") {
			t.Errorf("account %+v out of bounds", a)
		}
	})
}
