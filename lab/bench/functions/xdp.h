/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the functions need to be XDP programs: the kernel's names, the
 * packet, and their tables in a BPF arena, or, with TABLES_IN_MAPS, in array
 * maps. Needs clang 19 or newer, and no header of the kernel or of libbpf. */
#ifndef XDP_H
#define XDP_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int i32;
typedef signed long long i64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#define __ulong(name, value) enum { name##_value = value } name

#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PROG_ARRAY 3
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_ARENA 33
#define BPF_F_MMAPABLE 1024

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_tail_call)(struct xdp_md *ctx, void *map, u32 index) = (void *)12;
static long (*const bpf_xdp_adjust_head)(struct xdp_md *ctx, int delta) = (void *)44;

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* What the front door knows of a packet: levels/wasm-to-bpf/src/layout.rs. */
struct hand_over {
	u32 packet_length;
	u32 window_length;
	u32 offsets[2];
	u32 port_and_session;
	u32 rule;
	u32 flow_hash;
	u32 lane;
	u64 now_ms;
	u64 mark_and_reserved[3];
	u64 verdict;
	u64 padded;
	u64 fuel_used;
};

/* At a constant address, as it is to a module's program. */
volatile struct hand_over hand_over SEC(".data.hand_over");

#ifdef TABLES_IN_MAPS
#define TABLE_SPACE
#define MISSING(entry) (!(entry))
#define AT(name, index)                                           \
	({                                                        \
		u32 key_ = (index);                               \
		(name##_entry *)bpf_map_lookup_elem(&name, &key_); \
	})
#define DECLARE_TABLE(entry_type, name, count)        \
	typedef entry_type name##_entry;              \
	struct {                                      \
		__uint(type, BPF_MAP_TYPE_ARRAY);     \
		__uint(max_entries, count);           \
		__type(key, u32);                     \
		__type(value, entry_type);            \
	} name SEC(".maps");                          \
	static const entry_type name##_first[count] = FIRST_##name;
#else
#define TABLE_SPACE __attribute__((address_space(1)))
#define MISSING(entry) 0
#define AT(name, index) (&name[index])
#define DECLARE_TABLE(entry_type, name, count) \
	typedef entry_type name##_entry;       \
	entry_type TABLE_SPACE name[count] = FIRST_##name;
struct {
	__uint(type, BPF_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 64); /* pages of 4 KiB */
} arena SEC(".maps");
#endif

#define TAM_PASS 0u
#define TAM_DROP(reason) (1u | (u32)(reason) << 16)
#define TAM_BE16(x) ((u16)__builtin_bswap16((u16)(x)))
#define TAM_BE32(x) ((u32)__builtin_bswap32((u32)(x)))

struct packet {
	u8 *head;
	u8 *end;
	struct xdp_md *ctx;
};

#define HEAD(packet) ((packet)->head)

/* Whether the packet has its first `length` bytes. */
static inline __attribute__((always_inline)) int has(const struct packet *packet, u32 length)
{
	return packet->head + length <= packet->end;
}

/* The byte at `at`; or -1 beyond the packet. */
static inline __attribute__((always_inline)) i32 byte_at(const struct packet *packet, u32 at)
{
	u8 *byte = packet->head + at;
	if (byte + 1 > packet->end)
		return -1;
	return *byte;
}

/* The `count` bytes at `at`; or none, when they end beyond the packet. */
static inline __attribute__((always_inline)) u8 *bytes_at(const struct packet *packet, u32 at,
							  u32 count)
{
	u8 *bytes = packet->head + at;
	return bytes + count > packet->end ? (u8 *)0 : bytes;
}

static inline __attribute__((always_inline)) u32 length_of(const struct packet *packet)
{
	return packet->end - packet->head;
}

static inline __attribute__((always_inline)) u64 now_ms(void)
{
	return hand_over.now_ms;
}

/* Adds bytes in front, or takes some away; whether that went well. */
static inline __attribute__((always_inline)) int resize_head(struct packet *packet, i32 delta)
{
	if (bpf_xdp_adjust_head(packet->ctx, -delta))
		return 0;
	packet->head = (u8 *)(long)packet->ctx->data;
	packet->end = (u8 *)(long)packet->ctx->data_end;
	return 1;
}

#ifdef WITH_ENTRY
/* What a node's program does around each module, in C: so much of the difference
 * between module and program is not the compiler's. It leaves the verdict in the
 * hand-over, and adds to the fuel that the entry's modules have used. */

/* What a packet may cost: any number does. */
#define FUEL 225

#define FUNCTION(function_name, bytes_of_window)                                        \
	static inline __attribute__((always_inline)) u32 handle(struct packet *packet); \
	SEC("xdp.frags") int on_packet(struct xdp_md *ctx)                              \
	{                                                                               \
		struct packet packet = {                                                \
			(u8 *)(long)ctx->data,                                          \
			(u8 *)(long)ctx->data_end,                                      \
			ctx,                                                            \
		};                                                                      \
		u64 verdict = handle(&packet);                                          \
		hand_over.fuel_used += FUEL;                                            \
		hand_over.verdict = verdict;                                            \
		return verdict;                                                         \
	}
#else
#define FUNCTION(function_name, bytes_of_window)                                        \
	static inline __attribute__((always_inline)) u32 handle(struct packet *packet); \
	SEC("xdp.frags") int on_packet(struct xdp_md *ctx)                              \
	{                                                                               \
		struct packet packet = {                                                \
			(u8 *)(long)ctx->data,                                          \
			(u8 *)(long)ctx->data_end,                                      \
			ctx,                                                            \
		};                                                                      \
		return handle(&packet);                                                 \
	}
#endif

/* For the test vectors: the packet names a table and an entry, and gets the
 * entry's bytes at offset 8. Answers how many, or 0: there is no such entry. */
#define INSPECT_TABLE(entry_type, name, count)                                       \
	if (table == at++) {                                                         \
		if (entry >= count)                                                  \
			return 0;                                                    \
		const u8 TABLE_SPACE *bytes = (const u8 TABLE_SPACE *)AT(name, entry); \
		if (MISSING(bytes))                                                  \
			return 0;                                                    \
		for (u32 i = 0; i < sizeof(entry_type); i++)                         \
			head[8 + i] = bytes[i];                                      \
		return sizeof(entry_type);                                           \
	}

SEC("xdp.frags") int inspect(struct xdp_md *ctx);

#ifdef TABLES_IN_MAPS
/* Gives the maps their first contents. */
#define FILL_TABLE(entry_type, name, count)                \
	for (u32 i = 0; i < count; i++) {                  \
		entry_type *entry = AT(name, i);           \
		if (MISSING(entry))                        \
			return 1;                          \
		*entry = name##_first[i];                  \
	}
#define DEFINE_FILL(TABLES) \
	SEC("xdp.frags") int fill(struct xdp_md *ctx) { TABLES(FILL_TABLE) return 0; }
#else
#define DEFINE_FILL(TABLES)
#endif

#define DEFINE_TABLES(TABLES)                                \
	TABLES(DECLARE_TABLE)                                \
	DEFINE_FILL(TABLES)                                  \
	int inspect(struct xdp_md *ctx)                      \
	{                                                    \
		u8 *head = (u8 *)(long)ctx->data;            \
		if (head + 64 > (u8 *)(long)ctx->data_end)   \
			return 0;                            \
		u32 table = *(u32 *)head, at = 0;            \
		u32 entry = *(u32 *)(head + 4);              \
		TABLES(INSPECT_TABLE)                        \
		return 0;                                    \
	}

#endif
