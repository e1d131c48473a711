// SPDX-License-Identifier: Apache-2.0

package api

// EachFD calls fn for every descriptor that the spec can name, in a fixed
// order, and stops at its first error. fn may change them.
func (s *Sandbox) EachFD(fn func(*FD) error) error {
	fds := []*FD{&s.ControlFD, &s.ListenFD, &s.StreamsFD, &s.Network.BrokerFD}
	for i := range s.Network.Links {
		l := &s.Network.Links[i]
		for j := range l.FDs {
			fds = append(fds, &l.FDs[j])
		}
	}
	for _, fd := range fds {
		if err := fn(fd); err != nil {
			return err
		}
	}
	return s.Container.EachFD(fn)
}

// EachFD is [Sandbox.EachFD] for what one container names.
func (c *Container) EachFD(fn func(*FD) error) error {
	fds := []*FD{&c.InitFD,
		&c.Process.StdinFD, &c.Process.StdoutFD, &c.Process.StderrFD}
	for i := range c.Process.ExtraFDs {
		fds = append(fds, &c.Process.ExtraFDs[i])
	}
	for i := range c.Rootfs.Layers {
		fds = append(fds, &c.Rootfs.Layers[i].FD)
	}
	volume := func(v *Volume) {
		if v == nil {
			return
		}
		for i := range v.FDs {
			fds = append(fds, &v.FDs[i])
		}
	}
	volume(c.Rootfs.Upper)
	for i := range c.Mounts {
		volume(c.Mounts[i].Volume)
	}
	fds = append(fds, c.TreeFDs()...)
	for _, fd := range fds {
		if err := fn(fd); err != nil {
			return err
		}
	}
	return nil
}

// TreeFDs returns the sockets of all host trees of a container.
func (c *Container) TreeFDs() []*FD {
	var fds []*FD
	if h := c.Rootfs.Host; h != nil {
		fds = append(fds, &h.FD)
	}
	for i := range c.Mounts {
		if h := c.Mounts[i].Host; h != nil {
			fds = append(fds, &h.FD)
		}
	}
	return fds
}
