/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Capture records: the format that taps write into their ring buffer.
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
 *
 */
#ifndef TAM_CAPTURE_H
#define TAM_CAPTURE_H

#include <linux/types.h>

/* Most bytes of a frame that are kept. */
#define TAM_SNAP_MAX 2048

/* tam_captured.way */
enum tam_way_captured {
	TAM_ARRIVED = 0,	/* on arrival by the port, with its outcome */
	TAM_LEFT = 1,		/* leaving by the front door or from a module at nic */
	TAM_LEFT_KERNEL = 2,	/* leaving by the stack's egress, also from a module at kernel */
	TAM_ENDED = 3,		/* as a module below left it, before the drop */
	TAM_STACK_DROPPED = 4,	/* as the kernel's stack dropped it */
};

struct tam_captured {
	__u64 time_ns;
	__u32 length;
	__u32 captured;
	__u16 port;		/* arrival port or, of one that leaves, egress port; 0xffff: none */
	__u8 way;
	__u8 outcome;		/* enum tam_outcome; 0xff when the front door did not see it */
	__u8 action;		/* enum xdp_action of the front door */
	__u8 tagged;		/* 1: the tag that the kernel stripped from the frame follows */
	__u16 tci;
	__be16 tpid_be;
	__u16 session;
	__u16 entry;
	__u8 level;		/* enum tam_level of the module that handled it; 0: none below user */
	__u8 bare;		/* 1: without a link header; only of packets dropped by the stack */
	__u32 rule;		/* 0xffffffff: no rule */
	__u32 verdict;		/* verdict of that module */
	__u32 trapped;		/* trap in its hand-over */
	__u32 stack_reason;	/* reason for which the stack dropped it */
};

#endif
