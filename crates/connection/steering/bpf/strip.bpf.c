/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A link whose clients lack TCP options, for tests: options of an incoming SYN are replaced by
 * NOPs. The link must be virtual, with partial checksums. Supports IPv4 without options and IPv6
 * without extension headers. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NEXT -1 /* both TCX_NEXT and TC_ACT_UNSPEC */
#define TCP_SYN 0x02
#define TCP_ACK 0x10
#define OPTION_NOP 1
#define OPTIONS_BYTES_MAX 40

/* Bit mask of the option kinds to strip; set at load. */
volatile const __u32 kinds = 0;

/* Replaces `bytes` bytes by NOPs. */
static __always_inline int strip(struct __sk_buff *skb, __u32 at, __u8 bytes)
{
	__u8 nop = OPTION_NOP;

	for (int i = 0; i < 10; i++)
		if (i < bytes && bpf_skb_store_bytes(skb, at + i, &nop, sizeof(nop), 0))
			return -1;
	return 0;
}

SEC("classifier")
int strip_ingress(struct __sk_buff *skb)
{
	__u8 protocol, option[2];
	struct tcphdr tcp;
	__u32 at;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		at = sizeof(struct ethhdr) + sizeof(struct iphdr);
		if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + 9, &protocol, 1))
			return NEXT;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		at = sizeof(struct ethhdr) + sizeof(struct ipv6hdr);
		if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + 6, &protocol, 1))
			return NEXT;
	} else {
		return NEXT;
	}
	if (protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return NEXT;
	if (!tcp.syn || tcp.ack)
		return NEXT;
	__u32 end = at + tcp.doff * 4;

	at += sizeof(tcp);
	for (int i = 0; i < OPTIONS_BYTES_MAX && at < end; i++) {
		if (bpf_skb_load_bytes(skb, at, option, sizeof(option)) || !option[0])
			return NEXT;
		if (option[0] == OPTION_NOP) {
			at++;
			continue;
		}
		if (option[0] < 32 && kinds & 1u << option[0] && strip(skb, at, option[1]))
			return NEXT;
		at += option[1] ? option[1] : 1;
	}
	return NEXT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
