// SPDX-License-Identifier: Apache-2.0

package policy

// numbers gives the system calls of the table their numbers on each
// architecture. They are written out, rather than taken from x/sys, because
// the program for arm64 is generated on amd64 too; a test compares both
// columns with x/sys.
var numbers = map[string]struct{ amd64, arm64 int }{
	"accept4":           {288, 242},
	"clock_gettime":     {228, 113},
	"clone":             {56, 220},
	"close":             {3, 57},
	"epoll_create1":     {291, 20},
	"epoll_ctl":         {233, 21},
	"epoll_pwait":       {281, 22},
	"exit":              {60, 93},
	"exit_group":        {231, 94},
	"fallocate":         {285, 47},
	"fcntl":             {72, 25},
	"fdatasync":         {75, 83},
	"fstat":             {5, 80},
	"fsync":             {74, 82},
	"ftruncate":         {77, 46},
	"futex":             {202, 98},
	"getcpu":            {309, 168},
	"getpid":            {39, 172},
	"getrandom":         {318, 278},
	"gettid":            {186, 178},
	"ioctl":             {16, 29},
	"lseek":             {8, 62},
	"madvise":           {28, 233},
	"membarrier":        {324, 283},
	"mincore":           {27, 232},
	"mlock":             {149, 228},
	"mmap":              {9, 222},
	"munlock":           {150, 229},
	"munmap":            {11, 215},
	"nanosleep":         {35, 101},
	"ppoll":             {271, 73},
	"prctl":             {157, 167},
	"pread64":           {17, 67},
	"preadv2":           {327, 286},
	"ptrace":            {101, 117},
	"pwrite64":          {18, 68},
	"pwritev2":          {328, 287},
	"read":              {0, 63},
	"recvmsg":           {47, 212},
	"restart_syscall":   {219, 128},
	"rt_sigaction":      {13, 134},
	"rt_sigprocmask":    {14, 135},
	"rt_sigreturn":      {15, 139},
	"rt_tgsigqueueinfo": {297, 240},
	"sched_yield":       {24, 124},
	"setpriority":       {141, 140},
	"setsockopt":        {54, 208},
	"shutdown":          {48, 210},
	"sigaltstack":       {131, 132},
	"statx":             {332, 291},
	"sync_file_range":   {277, 84},
	"tgkill":            {234, 131},
	"utimensat":         {280, 88},
	"wait4":             {61, 260},
	"waitid":            {247, 95},
	"write":             {1, 64},
}

// Number returns the number of a system call of the table.
func Number(arch Arch, name string) (int, bool) {
	n, ok := numbers[name]
	if arch == ARM64 {
		return n.arm64, ok
	}
	return n.amd64, ok
}
