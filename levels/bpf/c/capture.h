/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* What the taps of a capture write into their ring buffer.
 *
 *   0            8        12      16    18   19       20      21      22   24    26       28     30     32    36
 *  +------------+--------+-------+-----+----+--------+-------+-------+----+-----+--------+------+------+-----+------+
 *  | monotonic  | length | bytes | port| way| outcome| action| tagged| tci| tpid| session| entry| zero | rule| zero |
 *  | time in ns | on wire| here  |     |    |        |       |       |    |     |        |      |      |     |      |
 *  +------------+--------+-------+-----+----+--------+-------+-------+----+-----+--------+------+------+-----+------+
 *  40: the frame's first bytes
 */
#ifndef TAM_CAPTURE_H
#define TAM_CAPTURE_H

#include <linux/types.h>

/* The most bytes of a frame that are kept. */
#define TAM_SNAP_MAX 2048

/* tam_captured.way */
enum tam_way_captured {
	TAM_ARRIVED = 0,	/* as it came in by the port, with what became of it */
	TAM_LEFT = 1,		/* as it leaves by the front door or from a module below */
	TAM_LEFT_KERNEL = 2,	/* as it leaves by the kernel's stack */
};

struct tam_captured {
	__u64 time_ns;
	__u32 length;
	__u32 captured;
	__u16 port;
	__u8 way;
	__u8 outcome;		/* enum tam_outcome; 0xff when the front door did not see it */
	__u8 action;		/* enum xdp_action, of what the front door saw */
	__u8 tagged;		/* 1: the tag that the kernel took out of the frame follows */
	__u16 tci;
	__be16 tpid_be;
	__u16 session;
	__u16 entry;
	__u16 zero;
	__u32 rule;		/* 0xffffffff: none */
	__u32 zeros;
};

#endif
