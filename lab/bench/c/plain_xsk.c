// SPDX-License-Identifier: Apache-2.0 OR MIT
/* A plain AF_XDP program in C, the baseline of `tam bench user`: receives from
 * one device and forwards to another, or receives alone. No sandbox, no rules,
 * no library: the kernel's header and system calls.
 *
 *   plain_xsk forward IN OUT CPU DESTINATION-MAC SOURCE-MAC
 *   plain_xsk rxdrop  IN -   CPU
 *
 * One UMEM; the second device's socket shares it, so a frame is forwarded
 * without a copy of ours. Copy mode (all that veth has), batches of 64,
 * wake-up on need (XDP_USE_NEED_WAKEUP) and poll() when there is nothing to
 * do. Every 100 ms it prints {"time_ns":…,"packets":…}: packets received in
 * total, and ends when its standard output is closed. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SOL_XDP
#define SOL_XDP 283
#endif

#define BATCH 64
#define RING 2048		/* entries of each ring, a power of two */
#define FRAMES (2 * RING)	/* one ring's worth to receive into, one on its way out */
#define FRAME 4096
#define REPORT_NS 100000000ull
#define BIND_RETRY_US 10000
#define BIND_TRIES 200

struct ring {
	uint32_t *producer, *consumer, *flags;
	void *entries;
	uint32_t cached;	/* this side's index: consumer of rx and completion, producer of the others */
};

struct port {
	int fd;
	struct ring rx, tx, fill, completion;
};

static uint8_t *umem;
static uint64_t frames_free[FRAMES];
static uint32_t frames_free_count;
static volatile uint8_t seen;	/* keeps the compiler from leaving the read out */

static void die(const char *format, ...)
{
	int error = errno;
	va_list arguments;

	va_start(arguments, format);
	fprintf(stderr, "plain_xsk: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, ": %s\n", strerror(error));
	va_end(arguments);
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void option(int fd, int name, const void *value, socklen_t length)
{
	if (setsockopt(fd, SOL_XDP, name, value, length))
		die("setting socket option %d", name);
}

static struct ring map_ring(int fd, off_t page, const struct xdp_ring_offset *at, size_t entry)
{
	struct ring ring = { 0 };
	uint8_t *start = mmap(NULL, at->desc + RING * entry, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_POPULATE, fd, page);

	if (start == MAP_FAILED)
		die("mapping a ring");
	ring.producer = (uint32_t *)(start + at->producer);
	ring.consumer = (uint32_t *)(start + at->consumer);
	ring.flags = (uint32_t *)(start + at->flags);
	ring.entries = start + at->desc;
	return ring;
}

/* `shared` is the descriptor of a socket whose UMEM is used, or -1. */
static void open_port(struct port *port, const char *device, int shared)
{
	struct xdp_umem_reg memory = { .addr = (uintptr_t)umem, .len = (uint64_t)FRAMES * FRAME,
				       .chunk_size = FRAME };
	struct sockaddr_xdp address = { .sxdp_family = AF_XDP };
	struct xdp_mmap_offsets offsets;
	socklen_t length = sizeof(offsets);
	uint32_t entries = RING, tries = BIND_TRIES;

	port->fd = socket(AF_XDP, SOCK_RAW, 0);
	if (port->fd < 0)
		die("making an AF_XDP socket");
	if (shared < 0)
		option(port->fd, XDP_UMEM_REG, &memory, sizeof(memory));
	option(port->fd, XDP_UMEM_FILL_RING, &entries, sizeof(entries));
	option(port->fd, XDP_UMEM_COMPLETION_RING, &entries, sizeof(entries));
	option(port->fd, XDP_RX_RING, &entries, sizeof(entries));
	option(port->fd, XDP_TX_RING, &entries, sizeof(entries));
	if (getsockopt(port->fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length))
		die("asking for the rings' offsets");
	port->rx = map_ring(port->fd, XDP_PGOFF_RX_RING, &offsets.rx, sizeof(struct xdp_desc));
	port->tx = map_ring(port->fd, XDP_PGOFF_TX_RING, &offsets.tx, sizeof(struct xdp_desc));
	port->fill = map_ring(port->fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, sizeof(uint64_t));
	port->completion =
		map_ring(port->fd, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, sizeof(uint64_t));
	address.sxdp_ifindex = if_nametoindex(device);
	address.sxdp_flags = shared < 0 ? XDP_COPY | XDP_USE_NEED_WAKEUP : XDP_SHARED_UMEM;
	address.sxdp_shared_umem_fd = shared < 0 ? 0 : shared;
	/* The kernel lets go of the UMEM of a process that ended a little later
	 * (xp_release_deferred, net/xdp/xsk_buff_pool.c). */
	while (bind(port->fd, (struct sockaddr *)&address, sizeof(address)))
		if (errno != EBUSY || !tries--)
			die("binding to %s", device);
		else
			usleep(BIND_RETRY_US);
}

static int bpf(int command, union bpf_attr *attributes)
{
	return syscall(SYS_bpf, command, attributes, sizeof(*attributes));
}

/* Attaches "return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)". */
static void attach(const char *device, int socket_fd)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4,
			       .max_entries = 1 };
	int sockets = bpf(BPF_MAP_CREATE, &map), program;
	uint32_t queue = 0;
	struct bpf_insn code[] = {
		{ .code = BPF_LDX | BPF_W | BPF_MEM, .dst_reg = BPF_REG_2, .src_reg = BPF_REG_1,
		  .off = offsetof(struct xdp_md, rx_queue_index) },
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1,
		  .src_reg = BPF_PSEUDO_MAP_FD, .imm = sockets },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr load = { .prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)code,
				.insn_cnt = sizeof(code) / sizeof(code[0]),
				.license = (uintptr_t)"Dual BSD/GPL" };
	union bpf_attr update = { .map_fd = sockets, .key = (uintptr_t)&queue,
				  .value = (uintptr_t)&socket_fd };
	union bpf_attr link = { .link_create = { .target_ifindex = if_nametoindex(device),
						 .attach_type = BPF_XDP,
						 .flags = XDP_FLAGS_DRV_MODE } };

	if (sockets < 0)
		die("making the socket map");
	program = bpf(BPF_PROG_LOAD, &load);
	if (program < 0)
		die("loading the redirect program");
	if (bpf(BPF_MAP_UPDATE_ELEM, &update))
		die("writing the socket map");
	link.link_create.prog_fd = program;
	/* The link's descriptor stays open as long as the process. */
	if (bpf(BPF_LINK_CREATE, &link) < 0)
		die("attaching to %s", device);
}

static uint32_t filled(const struct ring *ring)
{
	return __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE) - ring->cached;
}

static uint32_t room(const struct ring *ring)
{
	return RING - (ring->cached - __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE));
}

static void consumed(struct ring *ring)
{
	__atomic_store_n(ring->consumer, ring->cached, __ATOMIC_RELEASE);
}

static void produced(struct ring *ring)
{
	__atomic_store_n(ring->producer, ring->cached, __ATOMIC_RELEASE);
}

static int wants_wake_up(const struct ring *ring)
{
	return __atomic_load_n(ring->flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP;
}

static void refill(struct port *port)
{
	uint64_t *entries = port->fill.entries;
	uint32_t count = room(&port->fill);

	if (count > frames_free_count)
		count = frames_free_count;
	if (count < BATCH)
		return;
	while (count--)
		entries[port->fill.cached++ & (RING - 1)] = frames_free[--frames_free_count];
	produced(&port->fill);
}

static void complete(struct port *port)
{
	uint64_t *entries = port->completion.entries;
	uint32_t count = filled(&port->completion);

	while (count--)
		frames_free[frames_free_count++] =
			entries[port->completion.cached++ & (RING - 1)] & ~(uint64_t)(FRAME - 1);
	consumed(&port->completion);
}

/* Forwards a batch; packets that do not fit into the ring are dropped. */
static uint32_t forward(struct port *in, struct port *out, const uint8_t *macs)
{
	struct xdp_desc *from = in->rx.entries, *to = out->tx.entries;
	uint32_t count = filled(&in->rx), space = room(&out->tx), at;

	if (count > BATCH)
		count = BATCH;
	for (at = 0; at < count; at++) {
		struct xdp_desc packet = from[in->rx.cached++ & (RING - 1)];

		if (at >= space) {
			frames_free[frames_free_count++] = packet.addr & ~(uint64_t)(FRAME - 1);
			continue;
		}
		memcpy(umem + packet.addr, macs, 12);
		to[out->tx.cached++ & (RING - 1)] = packet;
	}
	consumed(&in->rx);
	produced(&out->tx);
	if (count && wants_wake_up(&out->tx))
		(void)sendto(out->fd, NULL, 0, MSG_DONTWAIT, NULL, 0);
	complete(out);
	return count;
}

/* Reads the first byte of each packet of a batch and drops it. */
static uint32_t drop(struct port *in)
{
	struct xdp_desc *from = in->rx.entries;
	uint32_t count = filled(&in->rx), at;

	if (count > BATCH)
		count = BATCH;
	for (at = 0; at < count; at++) {
		struct xdp_desc *packet = &from[in->rx.cached++ & (RING - 1)];

		seen = umem[packet->addr];
		frames_free[frames_free_count++] = packet->addr & ~(uint64_t)(FRAME - 1);
	}
	consumed(&in->rx);
	return count;
}

static void parse_mac(uint8_t *mac, const char *text)
{
	if (sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3],
		   &mac[4], &mac[5]) != 6) {
		errno = EINVAL;
		die("reading the MAC %s", text);
	}
}

int main(int argc, char **argv)
{
	int forwards = argc == 7 && !strcmp(argv[1], "forward");
	struct port in = { 0 }, out = { 0 };
	uint64_t packets = 0, reported = now_ns(), at;
	uint8_t macs[12];
	cpu_set_t cpus;

	if (!forwards && !(argc == 5 && !strcmp(argv[1], "rxdrop"))) {
		fprintf(stderr, "plain_xsk forward IN OUT CPU DESTINATION SOURCE | rxdrop IN - CPU\n");
		return 2;
	}
	/* Ends with the benchmark, even if that is killed. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CPU_ZERO(&cpus);
	CPU_SET(atoi(argv[4]), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die("binding to CPU %s", argv[4]);
	setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ RLIM_INFINITY, RLIM_INFINITY });
	umem = mmap(NULL, (size_t)FRAMES * FRAME, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (umem == MAP_FAILED)
		die("allocating %d frames", FRAMES);
	for (at = 0; at < FRAMES; at++)
		frames_free[frames_free_count++] = at * FRAME;
	open_port(&in, argv[2], -1);
	if (forwards) {
		open_port(&out, argv[3], in.fd);
		parse_mac(macs, argv[5]);
		parse_mac(macs + 6, argv[6]);
	}
	refill(&in);
	attach(argv[2], in.fd);
	for (;;) {
		uint32_t count = forwards ? forward(&in, &out, macs) : drop(&in);
		uint64_t now = now_ns();

		packets += count;
		refill(&in);
		if (now - reported >= REPORT_NS) {
			reported = now;
			if (printf("{\"time_ns\":%llu,\"packets\":%llu}\n", (unsigned long long)now,
				   (unsigned long long)packets) < 0 || fflush(stdout))
				return 0;
		}
		if (!count) {
			struct pollfd ready = { .fd = in.fd, .events = POLLIN };

			/* Packets that await completion need system calls, too. */
			if (forwards && wants_wake_up(&out.tx))
				(void)sendto(out.fd, NULL, 0, MSG_DONTWAIT, NULL, 0);
			(void)poll(&ready, 1, 10);
		}
	}
}
