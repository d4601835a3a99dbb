/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Clamping of the maximum segment size: a walk over the options of a TCP SYN.
 *
 * An announced size of CLAMP or more becomes CLAMP, the checksum with it. Dropped:
 * with reason 1 a header of less than 20 bytes, with 2 options that are cut off,
 * with 3 an option of less than two bytes. */
#include "function.h"

#define CLAMP 1400

/* Segment sizes seen, and those clamped. */
#define FIRST_stats {0}
#define TABLES(TABLE) TABLE(u64, stats, 8)
DEFINE_TABLES(TABLES)

FUNCTION(mss_clamp, 128)

u32 handle(struct packet *packet)
{
	if (!has(packet, TCP_END) || !is_ipv4(packet) || GET8(packet, IP_PROTOCOL) != PROTOCOL_TCP)
		return TAM_PASS;
	if (!(GET8(packet, TCP_FLAGS) & TCP_SYN))
		return TAM_PASS;
	u32 doff = (GET8(packet, L4 + 12) >> 4) * 4;
	if (doff < 20)
		return TAM_DROP(1);
	u32 at = TCP_END, end = L4 + doff;
	for (u32 i = 0; i < 40; i++) {
		if (at >= end)
			break;
		i32 kind = byte_at(packet, at);
		if (kind < 0)
			return TAM_DROP(2);
		if (kind == 0)
			break;
		if (kind == 1) {
			at++;
			continue;
		}
		i32 length = byte_at(packet, at + 1);
		if (length < 2)
			return TAM_DROP(3);
		if (kind == 2 && length == 4) {
			u8 *p = bytes_at(packet, at, 4);
			if (!p)
				return TAM_DROP(2);
			u32 mss = TAM_BE16(*(packet_u16 *)(p + 2));
			u64 TABLE_SPACE *seen = AT(stats, 0);
			if (MISSING(seen))
				return TAM_PASS;
			*seen += 1;
			if (mss >= CLAMP) {
				u16 before = *(packet_u16 *)(p + 2), after = TAM_BE16(CLAMP);
				*(packet_u16 *)(p + 2) = after;
				/* an option may begin on an odd address */
				u32 b = before, a = after;
				if ((at + 2 - L4) & 1) {
					b = TAM_BE16(before);
					a = TAM_BE16(after);
				}
				PUT16(packet, TCP_CHECKSUM, checksum_after(GET16(packet, TCP_CHECKSUM), b, a));
				u64 TABLE_SPACE *clamped = AT(stats, 1);
				if (MISSING(clamped))
					return TAM_PASS;
				*clamped += 1;
			}
			break;
		}
		at += length;
	}
	return TAM_PASS;
}
