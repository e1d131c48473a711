// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// The program, as for amd64.
TEXT reaper<>(SB), NOSPLIT|NOFRAME, $0
	SUB	$64, RSP, R19
	MOVD	$-1, R1
	MOVD	R1, (R19)
	MOVD	$0, R0			// SIG_BLOCK
	MOVD	R19, R1
	MOVD	$0, R2
	MOVD	$8, R3
	MOVD	$135, R8		// rt_sigprocmask
	SVC
reap:
	MOVD	$-1, R0
	MOVD	$0, R1
	MOVD	$1, R2			// WNOHANG
	MOVD	$0, R3
	MOVD	$260, R8		// wait4
	SVC
	CMP	$0, R0
	BGT	reap
	MOVD	R19, R0
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$8, R3
	MOVD	$137, R8		// rt_sigtimedwait
	SVC
	CMP	$15, R0			// SIGTERM
	BEQ	end
	CMP	$2, R0			// SIGINT
	BNE	reap
end:
	MOVD	$0, R0
	MOVD	$94, R8			// exit_group
	SVC
	WORD	$0x2d787667		// reaperEnd
	WORD	$0x70616572
	WORD	$0x652d7265
	WORD	$0x2e73646e
	RET

// func reaperCode() unsafe.Pointer
TEXT ·reaperCode(SB), NOSPLIT, $0-8
	MOVD	$reaper<>(SB), R0
	MOVD	R0, ret+0(FP)
	RET
