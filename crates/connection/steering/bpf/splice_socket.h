/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Reads the numbers of the kernel's sockets. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "flow_key.h"

/* The parts of the kernel's sockets that are read; offsets are found at load. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct tcp_options_received {
	__u32 ts_recent;
	__u32 rcv_tsecr;
	__u16 saw_tstamp : 1, tstamp_ok : 1, dsack : 1, wscale_ok : 1, sack_ok : 3, smc_ok : 1,
		snd_wscale : 4, rcv_wscale : 4;
};

struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 rcv_wup;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 snd_wnd;
	__u32 rcv_wnd;
	__u32 write_seq;
	__u32 mss_cache;
	__u16 advmss;
	__u32 tsoffset;
	struct tcp_options_received rx_opt;
};
#pragma clang attribute pop

#define TCP_ESTABLISHED 1
#define TCP_CLOSE_WAIT 8
#define TCP_LISTEN 10

/* The numbers of a socket. */
struct socket_state {
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 rcv_wup;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 snd_wnd;
	__u32 rcv_wnd;
	__u32 write_seq;
	__u32 mss_cache;
	__u32 advmss;
	__u32 tsoffset;
	__u32 ts_recent;
	__u32 rcv_tsecr;
	__u32 has_timestamps;
	__u32 snd_wscale;
	__u32 rcv_wscale;
};

/* Returns a socket that is to be released, maybe one that listens; 0 if there is none. */
static __always_inline struct bpf_sock *lookup(struct __sk_buff *skb, const struct flow_key *key)
{
	struct bpf_sock_tuple tuple;
	__u32 bytes;

	__builtin_memset(&tuple, 0, sizeof(tuple));
	if (key->family == 4) {
		bytes = sizeof(tuple.ipv4);
		__builtin_memcpy(&tuple.ipv4.saddr, key->client, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, key->service, 4);
		tuple.ipv4.sport = key->client_port;
		tuple.ipv4.dport = key->service_port;
	} else {
		bytes = sizeof(tuple.ipv6);
		__builtin_memcpy(tuple.ipv6.saddr, key->client, 16);
		__builtin_memcpy(tuple.ipv6.daddr, key->service, 16);
		tuple.ipv6.sport = key->client_port;
		tuple.ipv6.dport = key->service_port;
	}
	return bytes == sizeof(tuple.ipv4) ?
		       bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0) :
		       bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
}

/* Returns true if a socket has the connection, also if that is closing. */
static __noinline int has_socket(struct __sk_buff *skb, const struct flow_key *key)
{
	struct bpf_sock *sk = key ? lookup(skb, key) : 0;
	int is_connected;

	if (!sk)
		return 0;
	is_connected = sk->state != TCP_LISTEN;
	bpf_sk_release(sk);
	return is_connected;
}

/* Returns 0 if there is no such socket. */
static __always_inline int find_socket(struct __sk_buff *skb, const struct flow_key *key,
				       struct socket_state *state)
{
	struct bpf_sock *sk = lookup(skb, key);
	struct tcp_sock *tcp;
	int is_found = 0;

	if (!sk)
		return 0;
	tcp = (sk->state == TCP_ESTABLISHED || sk->state == TCP_CLOSE_WAIT) ?
		      bpf_skc_to_tcp_sock(sk) :
		      0;
	if (tcp) {
		state->rcv_nxt = tcp->rcv_nxt;
		state->copied_seq = tcp->copied_seq;
		state->rcv_wup = tcp->rcv_wup;
		state->snd_nxt = tcp->snd_nxt;
		state->snd_una = tcp->snd_una;
		state->snd_wnd = tcp->snd_wnd;
		state->rcv_wnd = tcp->rcv_wnd;
		state->write_seq = tcp->write_seq;
		state->mss_cache = tcp->mss_cache;
		state->advmss = tcp->advmss;
		state->tsoffset = tcp->tsoffset;
		state->ts_recent = tcp->rx_opt.ts_recent;
		state->rcv_tsecr = tcp->rx_opt.rcv_tsecr;
		state->has_timestamps = BPF_CORE_READ_BITFIELD(tcp, rx_opt.tstamp_ok);
		state->snd_wscale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.snd_wscale);
		state->rcv_wscale = BPF_CORE_READ_BITFIELD(tcp, rx_opt.rcv_wscale);
		is_found = 1;
	}
	bpf_sk_release(sk);
	return is_found;
}
