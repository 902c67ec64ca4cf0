package docker

import "github.com/specbox/specbox/sandbox"

// WithoutCgroup lets an instance of a container leave its cgroup to the engine.
func WithoutCgroup(i sandbox.Instance) { i.(*instance).group = cgroup{} }
