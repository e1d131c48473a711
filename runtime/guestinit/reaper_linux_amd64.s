// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// The program: it blocks all signals, reaps until there is nothing to reap, and
// waits for the next signal. The mask lies below the stack, which nobody else uses.
TEXT reaper<>(SB), NOSPLIT|NOFRAME, $0
	LEAQ	-64(SP), R12
	MOVQ	$-1, (R12)
	XORL	DI, DI			// SIG_BLOCK
	MOVQ	R12, SI
	XORL	DX, DX
	MOVL	$8, R10
	MOVL	$14, AX			// rt_sigprocmask
	SYSCALL
reap:
	MOVQ	$-1, DI
	XORL	SI, SI
	MOVL	$1, DX			// WNOHANG
	XORL	R10, R10
	MOVL	$61, AX			// wait4
	SYSCALL
	TESTQ	AX, AX
	JGT	reap
	MOVQ	R12, DI
	XORL	SI, SI
	XORL	DX, DX
	MOVL	$8, R10
	MOVL	$128, AX		// rt_sigtimedwait
	SYSCALL
	CMPQ	AX, $15			// SIGTERM
	JEQ	end
	CMPQ	AX, $2			// SIGINT
	JNE	reap
end:
	XORL	DI, DI
	MOVL	$231, AX		// exit_group
	SYSCALL
	LONG	$0x2d787667		// reaperEnd
	LONG	$0x70616572
	LONG	$0x652d7265
	LONG	$0x2e73646e
	RET

// func reaperCode() unsafe.Pointer
TEXT ·reaperCode(SB), NOSPLIT, $0-8
	LEAQ	reaper<>(SB), AX
	MOVQ	AX, ret+0(FP)
	RET
