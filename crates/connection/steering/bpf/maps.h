/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Maps shared by user space and the programs. Assertions in src/flow_entry.rs pin the layouts. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow_key.h"

/* State of a flow: the destination of its packets. */
enum flow_state {
	FLOW_LOCAL = 0,    /* this host's stack */
	FLOW_HOLD = 1,     /* no owner yet: to the hold device */
	FLOW_REDIRECT = 2, /* another host on this link */
	FLOW_LINGER = 3,   /* as FLOW_REDIRECT, but a new SYN goes to this host */
	FLOW_OFFERED = 4,  /* as FLOW_HOLD until the client acknowledges data of the next owner,
			    * then as FLOW_REDIRECT */
};

/* Tracked state of a flow's connection, from the service's point of view: the bounds by which a TCP
 * would validate its segments (RFC 9293 3.10.7.4, RFC 5961 5.2). User space sets it from a
 * snapshot, with `known` 0 meanwhile; the programs update it from valid segments. All in host
 * order. */
struct tracked_state {
	__u32 known;          /* 0: not tracked, and not updated */
	__u32 last_ack;       /* the client's newest acknowledgement number */
	__u32 last_seq;       /* sequence number behind the client's newest segment */
	__u32 last_window;    /* window field of that acknowledgement, without scaling */
	__u32 window_max;     /* largest window the client has offered, bytes */
	__u32 receive_window; /* largest window the service can have offered by now, bytes */
	__u32 receive_max;    /* largest window its window scale allows, bytes */
	__u32 shift;          /* window scale of the client */
};

/* Entry of one flow. Only user space writes `state` (except from FLOW_LINGER to FLOW_LOCAL, at a
 * SYN) and `replayed`; the programs write the other counters. `mac` and `offered_at` are written
 * only while the state is FLOW_LOCAL or FLOW_HOLD. */
struct flow_entry {
	__u32 state;
	__u32 offered_at; /* behind the last byte sent before the offer, host order */
	__u8 mac[12];     /* destination and source, in the order of the Ethernet header */
	__u32 ifindex;    /* interface of redirected frames */
	__u32 held;       /* weight of the frames sent to the hold device */
	__u32 replayed;   /* weight of the frames that came back from it */
	__u64 packets;    /* redirected */
	__u64 bytes;
	struct tracked_state tracked;
	__u32 syn;        /* sequence number of the newest SYN that was delayed */
	__u32 has_syn;
};

/* The name of a flow of IPv4, in packet order. Its lookup takes 10 ns less than that of a `flow_key`. */
struct ipv4_key {
	__u32 client;
	__u32 service;
	__u32 ports;      /* the client's, and the service's from bit 16 on */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct ipv4_key);
	__type(value, __u32);
} flows_ipv4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, __u32);
} flows_ipv6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct flow_entry);
} slots SEC(".maps");

/* Fragments of known flows: maps addresses and the packet's identification to the ports, which only
 * the first fragment has. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, __u32);
} fragments SEC(".maps");

/* Global counters, besides those of each flow. Layout as in src/counts.rs. */
enum count {
	COUNT_CORRUPT,         /* a wrong checksum in a segment that would update tracked state */
	COUNT_HOPS,            /* dropped: redirected too often */
	COUNT_FRAGMENTS,       /* dropped: fragments of a flow between two owners */
	COUNT_EXTENSIONS,      /* dropped: too many IPv6 extension headers */
	COUNT_ERRORS,          /* ICMP errors sent to the owner */
	COUNT_ERRORS_REFUSED,  /* ICMP errors about a segment that is not in flight */
	COUNT_SYNS,            /* dropped once: new connections while their port's last one has an owner */
	COUNTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counts, &what);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* Congestion windows to restore, by the client's port. connect(2) of a restored socket follows at
 * once, so only two simultaneous restores of one port collide; the address distinguishes them. */
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

/* Index of the hold device; 0 if there is none. */
volatile const __u32 hold_ifindex = 0;
