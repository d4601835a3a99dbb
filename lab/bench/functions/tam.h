/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What a packet module in C needs of the packet ABI, version 1
 * (docs/module-abi.md): where the window and the metadata lie, verdicts, host
 * functions, the manifest. No library: every name here is an address, a number
 * or one import. Build with clang --target=wasm32 and LLVM's linker 19 or newer. */
#ifndef TAM_H
#define TAM_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int i32;

/* The head of the packet. Addresses known at compile time become packet
 * accesses below user level: index it with constants where you can. */
#define TAM_WINDOW ((u8 *)0x8102)

/* What the node says of the packet. */
struct tam_meta {
	u32 packet_length;
	u32 window_length;
	u16 l3_offset; /* 0xffff: none */
	u16 l4_offset;
	u8 begins_with;
	u8 ip_version;
	u8 protocol;
	u8 flags;
	u16 port;
	u16 session;
	u32 rule;
	u32 flow_hash;
	u32 lane;
	u64 now_ms;
	u8 mark[16];
	u64 reserved;
};
#define TAM_META ((struct tam_meta *)0x8000)
_Static_assert(sizeof(struct tam_meta) == 64, "the ABI says 64 bytes");

/* Verdicts. */
#define TAM_PASS 0u
#define TAM_PASS_REROUTE 0x100u
#define TAM_DROP(reason) (1u | (u32)(reason) << 16)
#define TAM_BOUNCE 2u
#define TAM_REDIRECT(port) (3u | (u32)(port) << 16)
#define TAM_RAISE 4u

/* Numbers of the packet are big-endian, memory is little-endian. */
#define TAM_BE16(x) ((u16)__builtin_bswap16((u16)(x)))
#define TAM_BE32(x) ((u32)__builtin_bswap32((u32)(x)))

#define TAM_EXPORT(name) __attribute__((export_name(#name), used))
#define TAM_HOST(name) __attribute__((import_module("tam"), import_name(#name)))

TAM_HOST(packet_load) i32 tam_packet_load(u32 offset, void *address, u32 length);
TAM_HOST(packet_store) i32 tam_packet_store(u32 offset, const void *address, u32 length);
TAM_HOST(packet_resize_head) i32 tam_packet_resize_head(i32 delta);
TAM_HOST(packet_resize_tail) i32 tam_packet_resize_tail(i32 delta);

/* One line of the manifest, TOML as it is: TAM_MANIFEST(name = "example") */
#define TAM_MANIFEST(...) TAM_MANIFEST_LINE(#__VA_ARGS__)
#define TAM_MANIFEST_LINE(line) \
	__asm__(".section .custom_section.tamandua,\"\",@\n.ascii " #line "\n.byte 10\n");

#endif
