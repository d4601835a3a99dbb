/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* DSCP marking by rules.
 *
 * The first of eight rules whose protocol and range of destination ports match
 * sets the packet's code point; the IPv4 checksum is updated. Without a matching
 * rule the packet becomes best effort. Run on its own result it does the same
 * work again. */
#include "function.h"

#define RULES 8

struct rule {
	u16 low;
	u16 high;
	u8 protocol; /* 0: either; with low above high: an unused rule */
	u8 dscp;
	u16 unused;
	u32 hits;
};

#define RULE(protocol, low, high, dscp) {low, high, protocol, dscp, 0, 0}
#define FIRST_rules                                                                          \
	{                                                                                    \
		RULE(PROTOCOL_UDP, 5060, 5061, 40), RULE(PROTOCOL_UDP, 16384, 32767, 46),    \
		RULE(PROTOCOL_TCP, 5060, 5061, 40), RULE(PROTOCOL_TCP, 22, 22, 16),          \
		RULE(0, 53, 53, 18), RULE(PROTOCOL_TCP, 80, 80, 10),                         \
		RULE(PROTOCOL_TCP, 443, 443, 12), RULE(0, 1, 0, 0),                          \
	}
#define TABLES(TABLE) TABLE(struct rule, rules, RULES)
DEFINE_TABLES(TABLES)

FUNCTION(dscp, 64)

u32 handle(struct packet *packet)
{
	struct flow flow;
	if (!flow_of(packet, &flow))
		return TAM_PASS;
	u32 port = TAM_BE16(flow.ports >> 16), dscp = 0;
	for (u32 i = 0; i < RULES; i++) {
		struct rule TABLE_SPACE *rule = AT(rules, i);
		if (MISSING(rule))
			return TAM_PASS;
		if (port < rule->low || port > rule->high)
			continue;
		if (rule->protocol != 0 && rule->protocol != flow.protocol)
			continue;
		rule->hits++;
		dscp = rule->dscp;
		break;
	}
	/* The header's first two bytes: version and length, type of service. */
	u32 before = GET16(packet, IP);
	u32 after = (before & 0x03ff) | dscp << 10;
	PUT8(packet, IP_TOS, after >> 8);
	PUT16(packet, IP_CHECKSUM, checksum_after(GET16(packet, IP_CHECKSUM), before, after));
	return TAM_PASS;
}
