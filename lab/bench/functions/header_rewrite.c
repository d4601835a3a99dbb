/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Header rewrite with checksum.
 *
 * The last byte of the source address picks a rule; one with a destination
 * replaces the packet's MAC addresses, destination address and destination port,
 * and brings the IPv4 and L4 checksums up to date. A packet that meets no rule
 * passes as it is. Run on its own result it does the same work again. */
#include "function.h"

struct rule {
	u32 destination; /* 0: no rule */
	u16 port;
	u16 mac_high; /* the destination MAC's bytes 0 and 1 */
	u32 mac_low;
	u32 hits;
};

#define RULE(a, b, c, d, port, mac) {ADDRESS(a, b, c, d), TAM_BE16(port), 0x0002, TAM_BE32(mac), 0}
#define FIRST_rules                                          \
	{                                                    \
		[1] = RULE(192, 0, 2, 10, 8080, 0x01),       \
		[2] = RULE(192, 0, 2, 11, 8443, 0x02),       \
		[3] = RULE(198, 51, 100, 7, 53, 0x03),       \
		[200 ... 255] = RULE(203, 0, 113, 9, 1, 0x04), \
	}
#define TABLES(TABLE) TABLE(struct rule, rules, 256)
DEFINE_TABLES(TABLES)

/* The node's own MAC address: 02:00:00:00:00:fe. */
#define OWN_MAC_LOW 0x00000002u
#define OWN_MAC_HIGH TAM_BE16(0x00fe)

FUNCTION(header_rewrite, 64)

u32 handle(struct packet *packet)
{
	struct flow flow;
	if (!flow_of(packet, &flow))
		return TAM_PASS;
	struct rule TABLE_SPACE *rule = AT(rules, flow.source >> 24);
	if (MISSING(rule) || rule->destination == 0)
		return TAM_PASS;
	rule->hits++;
	u32 destination = rule->destination;
	u16 port = rule->port, old_port = flow.ports >> 16;
	PUT16(packet, ETH_DESTINATION, rule->mac_high);
	PUT32(packet, ETH_DESTINATION + 2, rule->mac_low);
	PUT32(packet, ETH_SOURCE, OWN_MAC_LOW);
	PUT16(packet, ETH_SOURCE + 4, OWN_MAC_HIGH);
	PUT16(packet, IP_CHECKSUM,
	      checksum_after(GET16(packet, IP_CHECKSUM), flow.destination, destination));
	update_l4_checksum(packet, flow.protocol, flow.destination, destination, old_port, port);
	PUT32(packet, IP_DESTINATION, destination);
	PUT16(packet, L4_DESTINATION, port);
	return TAM_PASS;
}
