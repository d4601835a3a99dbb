/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Load-balancer hash, direct routing.
 *
 * A packet to 198.51.100.10, TCP or UDP, goes to one of eight back-ends: the
 * hash of its flow picks one of 4,096 slots, the slot names the back-end, whose
 * MAC address becomes the packet's destination. A back-end that is down (no
 * MAC) drops it with reason 1. The slots are shared out by weight. Run on its
 * own result it does the same work again. */
#include "function.h"

#define SLOTS 4096
#define BACKENDS 8
#define SERVICE ADDRESS(198, 51, 100, 10)

struct backend {
	u32 mac_low; /* bytes 0 to 3 */
	u16 mac_high;
	u16 up;
	u64 packets;
	u64 bytes;
};

#define FIRST_slots                                                                     \
	{                                                                               \
		[0 ... 1023] = 0, [1024 ... 2047] = 1, [2048 ... 2559] = 2,             \
		[2560 ... 3071] = 3, [3072 ... 3327] = 4, [3328 ... 3583] = 5,          \
		[3584 ... 3839] = 6, [3840 ... 4095] = 7,                               \
	}
#define BACKEND(n) {0x0000aa02u, TAM_BE16(0x0100 + (n)), 1, 0, 0}
#define FIRST_backends                                                            \
	{                                                                         \
		BACKEND(0), BACKEND(1), BACKEND(2), BACKEND(3), BACKEND(4), {0, 0, 0, 0, 0}, \
		BACKEND(6), BACKEND(7),                                           \
	}
#define TABLES(TABLE)             \
	TABLE(u8, slots, SLOTS)   \
	TABLE(struct backend, backends, BACKENDS)
DEFINE_TABLES(TABLES)

FUNCTION(lb_hash, 64)

u32 handle(struct packet *packet)
{
	struct flow flow;
	if (!flow_of(packet, &flow) || flow.destination != SERVICE)
		return TAM_PASS;
	const u8 TABLE_SPACE *slot = AT(slots, hash_of(&flow, 0) % SLOTS);
	if (MISSING(slot))
		return TAM_PASS;
	struct backend TABLE_SPACE *backend = AT(backends, *slot % BACKENDS);
	if (MISSING(backend) || !backend->up)
		return TAM_DROP(1);
	backend->packets++;
	backend->bytes += length_of(packet);
	PUT32(packet, ETH_DESTINATION, backend->mac_low);
	PUT16(packet, ETH_DESTINATION + 4, backend->mac_high);
	return TAM_PASS;
}
