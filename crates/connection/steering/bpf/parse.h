/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Parser of Ethernet frames, which yields a flow key. */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow_key.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20

/* Maximum number of IPv6 extension headers. RFC 8504 5.3 allows discarding longer chains. */
#define EXTENSIONS_MAX 4
/* Fragment offset, and "more fragments". */
#define IPV4_FRAGMENT 0x3fff
#define IPV4_OFFSET 0x1fff

/* RFC 792, RFC 4443. <linux/icmp.h> includes headers that BPF lacks. */
enum icmp_type {
	ICMP_UNREACHABLE = 3,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER_PROBLEM = 12,
	ICMPV6_UNREACHABLE = 1,
	ICMPV6_PACKET_TOO_BIG = 2,
	ICMPV6_TIME_EXCEEDED = 3,
	ICMPV6_PARAMETER_PROBLEM = 4,
};
#define ICMP_BYTES 8

/* Kind of a frame. */
enum packet {
	PACKET_WHOLE,     /* a TCP segment */
	PACKET_FIRST,     /* the first fragment of one: only the key is set */
	PACKET_LATER,     /* a later fragment: the key has no ports yet */
	PACKET_ERROR,     /* an ICMP error about a segment that the service sent: key and seq */
	PACKET_OTHER = -1,
	PACKET_CUT = -2,  /* headers lie outside the linear part */
	PACKET_LONG = -3, /* more extension headers than EXTENSIONS_MAX */
};

struct segment {
	struct flow_key key;
	__u32 seq;
	__u32 ack;
	__u32 payload;     /* bytes */
	__u32 at;          /* offset of the TCP header */
	__u32 bytes;       /* of TCP header and payload */
	__u32 fragment_id; /* in packet order */
	__u16 window;
	__u16 check;       /* in packet order */
	__u8 flags;
	__u8 protocol;
};

static __always_inline int parse_ipv4(void *data, void *end, __u32 at, struct segment *out)
{
	struct iphdr *ip = data + at;

	if ((void *)(ip + 1) > end)
		return PACKET_CUT;
	__u32 header = ip->ihl * 4, total = bpf_ntohs(ip->tot_len);
	__u16 fragment = bpf_ntohs(ip->frag_off) & IPV4_FRAGMENT;

	if (header < sizeof(*ip) || total < header)
		return PACKET_OTHER;
	out->key.family = 4;
	__builtin_memcpy(out->key.client, &ip->saddr, 4);
	__builtin_memcpy(out->key.service, &ip->daddr, 4);
	out->protocol = ip->protocol;
	out->at = at + header;
	out->bytes = total - header;
	out->fragment_id = ip->id;
	if (!fragment)
		return PACKET_WHOLE;
	return fragment & IPV4_OFFSET ? PACKET_LATER : PACKET_FIRST;
}

/* Common start of all extension headers except those of IPsec, and the fragment header. */
struct extension {
	__u8 next;
	__u8 length;
	__u8 kind;
	__u8 segments_left;
};

struct fragment_extension {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

static __always_inline int parse_ipv6(void *data, void *end, __u32 at, int extensions,
				      struct segment *out)
{
	struct ipv6hdr *ip = data + at;
	int kind = PACKET_WHOLE;

	if ((void *)(ip + 1) > end)
		return PACKET_CUT;
	__u32 left = bpf_ntohs(ip->payload_len);
	__u8 next = ip->nexthdr;

	out->key.family = 6;
	__builtin_memcpy(out->key.client, &ip->saddr, 16);
	__builtin_memcpy(out->key.service, &ip->daddr, 16);
	at += sizeof(*ip);
	for (int i = 0; i <= extensions; i++) {
		struct extension *extension = data + at;
		__u32 size = sizeof(struct fragment_extension);

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_ROUTING && next != IPPROTO_FRAGMENT) {
			out->protocol = next;
			out->at = at;
			out->bytes = left;
			return kind;
		}
		if ((void *)extension + size > end)
			return PACKET_CUT;
		if (next == IPPROTO_FRAGMENT) {
			struct fragment_extension *fragment = data + at;

			out->fragment_id = fragment->id;
			if (fragment->offset & bpf_htons(0xfff8))
				return PACKET_LATER;
			/* An atomic fragment (RFC 6946) is a whole packet. */
			if (fragment->offset & bpf_htons(1))
				kind = PACKET_FIRST;
		} else {
			/* The packet has not reached its destination. */
			if (next == IPPROTO_ROUTING && extension->segments_left)
				return PACKET_OTHER;
			size = (extension->length + 1) * 8;
		}
		if (left < size)
			return PACKET_OTHER;
		left -= size;
		at += size;
		next = extension->next;
	}
	return PACKET_LONG;
}

static __always_inline int parse_tcp(void *data, void *end, struct segment *out)
{
	struct tcphdr *tcp = data + out->at;

	if ((void *)(tcp + 1) > end)
		return PACKET_CUT;
	__u32 header = tcp->doff * 4;

	if (header < sizeof(*tcp) || out->bytes < header)
		return PACKET_OTHER;
	out->payload = out->bytes - header;
	out->key.client_port = tcp->source;
	out->key.service_port = tcp->dest;
	out->flags = ((__u8 *)tcp)[13];
	out->window = bpf_ntohs(tcp->window);
	out->check = tcp->check;
	out->seq = bpf_ntohl(tcp->seq);
	out->ack = bpf_ntohl(tcp->ack_seq);
	return PACKET_WHOLE;
}

/* Returns true for the errors that a TCP handles: those that quote one of its segments. */
static __always_inline int is_error(int version, __u8 type)
{
	if (version == 4)
		return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED ||
		       type == ICMP_PARAMETER_PROBLEM;
	return type >= ICMPV6_UNREACHABLE && type <= ICMPV6_PARAMETER_PROBLEM;
}

/* The service sent the quoted segment: its source is the service, its destination the client. At
 * least eight bytes of its header are quoted (RFC 792): ports and sequence number. */
static __always_inline int parse_error(void *data, void *end, int version, struct segment *out)
{
	__u8 *icmp = data + out->at;
	struct segment inner;

	if ((void *)icmp + ICMP_BYTES > end)
		return PACKET_CUT;
	if (!is_error(version, *icmp))
		return PACKET_OTHER;
	__builtin_memset(&inner, 0, sizeof(inner));
	/* A service sends no extension headers. */
	int kind = version == 4 ? parse_ipv4(data, end, out->at + ICMP_BYTES, &inner) :
				  parse_ipv6(data, end, out->at + ICMP_BYTES, 0, &inner);

	if (kind == PACKET_CUT)
		return PACKET_CUT;
	if ((kind != PACKET_WHOLE && kind != PACKET_FIRST) || inner.protocol != IPPROTO_TCP)
		return PACKET_OTHER;
	struct tcphdr *tcp = data + inner.at;

	if ((void *)tcp + 8 > end)
		return PACKET_CUT;
	__builtin_memcpy(out->key.client, inner.key.service, 16);
	__builtin_memcpy(out->key.service, inner.key.client, 16);
	out->key.client_port = tcp->dest;
	out->key.service_port = tcp->source;
	out->seq = bpf_ntohl(tcp->seq);
	return PACKET_ERROR;
}

/* Returns the kind of the frame. VLAN tags and all but TCP and its errors are PACKET_OTHER. */
static __always_inline int parse(void *data, void *end, struct segment *out)
{
	struct ethhdr *eth = data;
	int version;

	__builtin_memset(out, 0, sizeof(*out));
	if ((void *)(eth + 1) > end)
		return PACKET_CUT;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		version = 4;
	else if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		version = 6;
	else
		return PACKET_OTHER;
	int kind = version == 4 ? parse_ipv4(data, end, sizeof(*eth), out) :
				  parse_ipv6(data, end, sizeof(*eth), EXTENSIONS_MAX, out);

	if (kind < 0)
		return kind;
	if (kind == PACKET_LATER)
		/* Only the first fragment of an IPv6 packet has the protocol. */
		return version == 6 || out->protocol == IPPROTO_TCP ? kind : PACKET_OTHER;
	if (kind == PACKET_WHOLE && version == 4 && out->protocol == IPPROTO_ICMP)
		return parse_error(data, end, version, out);
	if (kind == PACKET_WHOLE && version == 6 && out->protocol == IPPROTO_ICMPV6)
		return parse_error(data, end, version, out);
	if (out->protocol != IPPROTO_TCP)
		return PACKET_OTHER;
	if (kind == PACKET_WHOLE)
		return parse_tcp(data, end, out);
	/* Every first fragment has the ports, since none is shorter than eight bytes. */
	struct tcphdr *tcp = data + out->at;

	if ((void *)tcp + 8 > end)
		return PACKET_CUT;
	out->key.client_port = tcp->source;
	out->key.service_port = tcp->dest;
	return kind;
}
