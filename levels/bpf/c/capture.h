/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* What the taps of a capture write into their ring buffer.
 *
 *   0            8        12      16    18   19       20      21      22   24    26       28     30     31    32
 *  +------------+--------+-------+-----+----+--------+-------+-------+----+-----+--------+------+------+-----+
 *  | monotonic  | length | bytes | port| way| outcome| action| tagged| tci| tpid| session| entry| level| bare|
 *  | time in ns | on wire| here  |     |    |        |       |       |    |     |        |      |      |     |
 *  +------------+--------+-------+-----+----+--------+-------+-------+----+-----+--------+------+------+-----+
 *  32     36        40        44             48
 *  +------+---------+---------+--------------+
 *  | rule | verdict | trapped | stack reason | the frame's first bytes
 *  +------+---------+---------+--------------+
 */
#ifndef TAM_CAPTURE_H
#define TAM_CAPTURE_H

#include <linux/types.h>

/* The most bytes of a frame that are kept. */
#define TAM_SNAP_MAX 2048

/* tam_captured.way */
enum tam_way_captured {
	TAM_ARRIVED = 0,	/* as it came in by the port, with what became of it */
	TAM_LEFT = 1,		/* as it leaves by the front door or from a module at nic */
	TAM_LEFT_KERNEL = 2,	/* as it leaves by the stack's egress, from a module at kernel too */
	TAM_ENDED = 3,		/* as a module below left what was dropped after it */
	TAM_STACK_DROPPED = 4,	/* as the kernel's stack had it when it dropped it */
};

struct tam_captured {
	__u64 time_ns;
	__u32 length;
	__u32 captured;
	__u16 port;		/* where it came in or, of one that leaves, where it does; 0xffff: by none */
	__u8 way;
	__u8 outcome;		/* enum tam_outcome; 0xff when the front door did not see it */
	__u8 action;		/* enum xdp_action, of what the front door saw */
	__u8 tagged;		/* 1: the tag that the kernel took out of the frame follows */
	__u16 tci;
	__be16 tpid_be;
	__u16 session;
	__u16 entry;
	__u8 level;		/* enum tam_level of the module that had it; 0: none below user */
	__u8 bare;		/* 1: without a link's header; only of what the stack dropped */
	__u32 rule;		/* 0xffffffff: none */
	__u32 verdict;		/* of that module, and */
	__u32 trapped;		/* what its hand-over says of a trap */
	__u32 stack_reason;	/* why the stack dropped it */
};

#endif
