/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0 */
/* Stamp that the generator writes behind a frame's headers, and arrivals reads. */
#ifndef TAM_BENCH_STAMP_H
#define TAM_BENCH_STAMP_H

#include <linux/types.h>

#define STAMP_MAGIC 0x7374616d	/* "mats": no other frame on the wire has it there */

struct stamp {
	__u32 magic;
	__u64 number;	/* of all frames of the generator, from 0 */
	__u64 sent_ns;	/* monotonic clock */
} __attribute__((packed));

#endif
