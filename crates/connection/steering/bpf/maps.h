/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What user space and the programs share. Layouts are pinned by assertions in src/slot.rs. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Owner of a flow, as the packets need to know it. */
enum slot_state {
	SLOT_LOCAL = 0,    /* this host's stack */
	SLOT_HOLD = 1,     /* nobody yet: to the hold device */
	SLOT_REDIRECT = 2, /* another host on this link */
	SLOT_LINGER = 3,   /* redirected still, but a new SYN is this host's */
	SLOT_OFFERED = 4,  /* as SLOT_HOLD until the client has heard from the next owner, then as
			    * SLOT_REDIRECT */
};

/* What is known of a flow's connection, seen from the service: the bounds that a TCP would judge
 * its segments by (RFC 9293 3.10.7.4, RFC 5961 5.2). User space sets it from a snapshot, with `known` 0
 * meanwhile; the programs move it on by segments that pass. All in host order. */
struct belief {
	__u32 known;          /* 0: nothing is, and nothing moves */
	__u32 last_ack;       /* the client's newest acknowledgement number */
	__u32 last_seq;       /* sequence number behind the client's newest segment */
	__u32 last_window;    /* window of that acknowledgement, as it stands in the header */
	__u32 window_max;     /* largest window the client has offered, bytes */
	__u32 receive_window; /* largest window the service can have offered by now, bytes */
	__u32 receive_max;    /* largest window its window scale allows, bytes */
	__u32 shift;          /* of the client's windows */
};

/* One flow. `state` is written by user space alone (but for SLOT_LINGER to SLOT_LOCAL, which a SYN
 * does), `replayed` by it too, the other counters by the programs alone. `mac`
 * and `offered_at` are written only while the state is SLOT_LOCAL or SLOT_HOLD. */
struct slot {
	__u32 state;
	__u32 offered_at; /* behind the last byte sent before the flow was offered, host order */
	__u8 mac[12];     /* destination and source, as an Ethernet header starts */
	__u32 ifindex;    /* where redirected frames leave */
	__u32 held;       /* weight of what went to the hold device */
	__u32 replayed;   /* weight of what came back from it */
	__u64 packets;    /* redirected */
	__u64 bytes;
	struct belief belief;
};

/* Addresses as they stand in the packet; IPv4 in the first four bytes, the rest zero. */
struct flow_key {
	__u8 client[16];
	__u8 service[16];
	__be16 client_port;
	__be16 service_port;
	__u32 family;     /* 4 or 6 */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, __u32);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

/* Fragments of known flows: addresses, and the packet's identification in place of the ports, to
 * the ports, which only the first fragment has. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, __u32);
} fragments SEC(".maps");

/* What the programs count beside a flow's own counters. Layout as src/counts.rs has it. */
enum count {
	COUNT_CORRUPT,         /* a wrong checksum in a segment that would have moved a belief */
	COUNT_HOPS,            /* dropped: redirected too often */
	COUNT_FRAGMENTS,       /* dropped: fragments of a flow between two owners */
	COUNT_EXTENSIONS,      /* dropped: too many IPv6 extension headers */
	COUNT_ERRORS,          /* ICMP errors sent to the owner */
	COUNT_ERRORS_REFUSED,  /* ICMP errors about a segment that is not under way */
	COUNTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

/* A piece of a segment while its checksum is computed. */
#define SCRATCH_BYTES 512
struct piece {
	__u8 bytes[SCRATCH_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct piece);
} scratch SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counts, &what);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* Congestion windows to restore, by the client's port: connect(2) of a restored socket follows at
 * once, so a collision is two restores of one port in flight; the address check tells them apart. */
struct window {
	__u32 address;    /* last four bytes of the client's address, packet order */
	__u32 segments;   /* 0: nothing to restore */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct window);
} windows SEC(".maps");

/* Number of the hold device; 0 where there is none. */
volatile const __u32 hold_ifindex = 0;
