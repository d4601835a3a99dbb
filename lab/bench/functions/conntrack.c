/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connection tracking: only packets of known flows, and those that open one, pass.
 *
 * A TCP SYN or any UDP packet opens a flow; a packet in the other direction makes
 * it established, FIN or RST closes it. A TCP packet of no known flow is dropped
 * with reason 1. A flow without packets for the timeout of its state expires: its
 * slot counts as empty. Both directions share a slot: the end with the smaller
 * address (or port) comes first in the key. A packet that finds no empty slot
 * among PROBES is dropped with reason 2. */
#include "function.h"

#define PLACES 4096
#define PROBES 4

enum { NEW = 1, ESTABLISHED = 2, CLOSING = 3 };

struct place {
	u32 low;
	u32 high;
	u32 ports; /* low's in the low half */
	u8 protocol; /* 0: empty */
	u8 state;
	u8 begun_by_high;
	u8 unused;
	u32 last_ms;
	u32 packets;
};

#define FIRST_places {{0}}
#define TABLES(TABLE) TABLE(struct place, places, PLACES)
DEFINE_TABLES(TABLES)

FUNCTION(conntrack, 64)

/* Timeout of a flow by its state, in milliseconds. */
INLINE u32 patience(u32 state)
{
	return state == ESTABLISHED ? 432000 : state == NEW ? 30000 : 10000;
}

INLINE u32 begin(struct place TABLE_SPACE *place, const struct flow *key, u32 from_high, u32 now)
{
	place->low = key->source;
	place->high = key->destination;
	place->ports = key->ports;
	place->protocol = key->protocol;
	place->state = NEW;
	place->begun_by_high = from_high;
	place->last_ms = now;
	place->packets = 1;
	return TAM_PASS;
}

INLINE u32 go_on(struct place TABLE_SPACE *place, u32 flags, u32 from_high, u32 now)
{
	if (flags & (TCP_FIN | TCP_RST))
		place->state = CLOSING;
	else if (place->state == NEW && place->begun_by_high != from_high)
		place->state = ESTABLISHED;
	place->last_ms = now;
	place->packets++;
	return TAM_PASS;
}

u32 handle(struct packet *packet)
{
	struct flow key;
	if (!flow_of(packet, &key))
		return TAM_PASS;
	u32 flags = 0, now = now_ms();
	if (key.protocol == PROTOCOL_TCP) {
		if (!has(packet, TCP_END))
			return TAM_PASS;
		flags = GET8(packet, TCP_FLAGS);
	}
	u32 from_high = key.source > key.destination ||
			(key.source == key.destination && (key.ports & 0xffff) > key.ports >> 16);
	if (from_high) {
		u32 source = key.source;
		key.source = key.destination;
		key.destination = source;
		key.ports = rotated(key.ports, 16);
	}
	u32 hash = hash_of(&key, 0), free = PLACES;
	for (u32 probe = 0; probe < PROBES; probe++) {
		u32 index = (hash + probe) % PLACES;
		struct place TABLE_SPACE *place = AT(places, index);
		if (MISSING(place))
			return TAM_PASS;
		if (place->protocol == 0 || now - place->last_ms > patience(place->state)) {
			if (free == PLACES)
				free = index;
		} else if (place->low == key.source && place->high == key.destination &&
			   place->ports == key.ports && place->protocol == key.protocol) {
			return go_on(place, flags, from_high, now);
		}
	}
	if (key.protocol == PROTOCOL_TCP && (flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return TAM_DROP(1);
	if (free == PLACES)
		return TAM_DROP(2);
	struct place TABLE_SPACE *place = AT(places, free);
	if (MISSING(place))
		return TAM_PASS;
	return begin(place, &key, from_high, now);
}
