// SPDX-License-Identifier: Apache-2.0

package convert

// CheckLimits refuses limits that a run would refuse too; zero is none.
func CheckLimits(memoryBytes, cpuMillis int64, cores int) error {
	return checkResources(&Options{MemoryBytes: memoryBytes, CPUMillis: cpuMillis}, cores)
}
