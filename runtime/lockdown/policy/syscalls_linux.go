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
	"dup":               {32, 23},
	"dup3":              {292, 24},
	"epoll_create1":     {291, 20},
	"epoll_ctl":         {233, 21},
	"epoll_pwait":       {281, 22},
	"eventfd2":          {290, 19},
	"exit":              {60, 93},
	"exit_group":        {231, 94},
	"fallocate":         {285, 47},
	"fchmodat":          {268, 53},
	"fchownat":          {260, 54},
	"fcntl":             {72, 25},
	"fdatasync":         {75, 83},
	"fstat":             {5, 80},
	"fstatfs":           {138, 44},
	"fsync":             {74, 82},
	"ftruncate":         {77, 46},
	"futex":             {202, 98},
	"getcpu":            {309, 168},
	"getdents64":        {217, 61},
	"getpid":            {39, 172},
	"getrandom":         {318, 278},
	"gettid":            {186, 178},
	"getxattr":          {191, 8},
	"ioctl":             {16, 29},
	"linkat":            {265, 37},
	"listxattr":         {194, 11},
	"lseek":             {8, 62},
	"madvise":           {28, 233},
	"membarrier":        {324, 283},
	"mincore":           {27, 232},
	"mkdirat":           {258, 34},
	"mknodat":           {259, 33},
	"mlock":             {149, 228},
	"mmap":              {9, 222},
	"munlock":           {150, 229},
	"munmap":            {11, 215},
	"nanosleep":         {35, 101},
	"openat":            {257, 56},
	"ppoll":             {271, 73},
	"prctl":             {157, 167},
	"pread64":           {17, 67},
	"preadv2":           {327, 286},
	"ptrace":            {101, 117},
	"pwrite64":          {18, 68},
	"pwritev2":          {328, 287},
	"read":              {0, 63},
	"readlinkat":        {267, 78},
	"recvmsg":           {47, 212},
	"removexattr":       {197, 14},
	"renameat2":         {316, 276},
	"restart_syscall":   {219, 128},
	"rt_sigaction":      {13, 134},
	"rt_sigprocmask":    {14, 135},
	"rt_sigreturn":      {15, 139},
	"rt_tgsigqueueinfo": {297, 240},
	"sched_yield":       {24, 124},
	"sendmsg":           {46, 211},
	"setpriority":       {141, 140},
	"setsockopt":        {54, 208},
	"setxattr":          {188, 5},
	"shutdown":          {48, 210},
	"sigaltstack":       {131, 132},
	"socketpair":        {53, 199},
	"statx":             {332, 291},
	"symlinkat":         {266, 36},
	"sync_file_range":   {277, 84},
	"tgkill":            {234, 131},
	"unlinkat":          {263, 35},
	"utimensat":         {280, 88},
	"wait4":             {61, 260},
	"waitid":            {247, 95},
	"write":             {1, 64},
}

// Number returns the number of a system call of the tables.
func Number(arch Arch, name string) (int, bool) {
	n, ok := numbers[name]
	if arch == ARM64 {
		return n.arm64, ok
	}
	return n.amd64, ok
}
