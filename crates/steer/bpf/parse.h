/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* From an Ethernet frame to a flow key. */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include "maps.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

struct segment {
	struct flow_key key;
	__u32 ack;
	__u32 seq_end;
	__u32 weight; /* octets of payload, 1 where there are none */
	__u16 window;
	__u8 flags;
};

static __always_inline int parse_tcp(struct tcphdr *tcp, void *end, __u32 payload_and_header,
				     struct segment *out)
{
	if ((void *)(tcp + 1) > end)
		return -1;
	__s32 payload = payload_and_header - tcp->doff * 4;

	out->weight = payload > 0 ? payload : 1;
	out->key.client_port = tcp->source;
	out->key.service_port = tcp->dest;
	out->flags = ((__u8 *)tcp)[13];
	out->window = bpf_ntohs(tcp->window);
	out->ack = bpf_ntohl(tcp->ack_seq);
	out->seq_end = bpf_ntohl(tcp->seq) + payload;
	return 0;
}

/* 0 where the frame is a TCP segment of IPv4 without fragments, or of IPv6 without extension
 * headers. Others are never migrated, so they pass. */
static __always_inline int parse(void *data, void *end, struct segment *out)
{
	struct ethhdr *eth = data;

	__builtin_memset(out, 0, sizeof(*out));
	if ((void *)(eth + 1) > end)
		return -1;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP)
			return -1;
		/* IP options would move the TCP header; connections with them stay at home. */
		if (ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
			return -1;
		out->key.family = 4;
		__builtin_memcpy(out->key.client, &ip->saddr, 4);
		__builtin_memcpy(out->key.service, &ip->daddr, 4);
		return parse_tcp((void *)(ip + 1), end, bpf_ntohs(ip->tot_len) - sizeof(*ip), out);
	}
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_TCP)
			return -1;
		out->key.family = 6;
		__builtin_memcpy(out->key.client, &ip->saddr, 16);
		__builtin_memcpy(out->key.service, &ip->daddr, 16);
		return parse_tcp((void *)(ip + 1), end, bpf_ntohs(ip->payload_len), out);
	}
	return -1;
}
