/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Direct return at a server's host: segments of a response become segments of the client's connection.
 *
 *   link egress:  a connection without a rule ─────────────► unchanged
 *                 a segment that is not of the rule ───────► unchanged, to the balancer
 *                 a segment of the rule ───────────────────► rewritten, to the client
 *
 * The rule is that of src/rule.rs in the crate `splice`; a test compares the two. A rule that changes
 * while a program reads it does not apply: the segment goes to the balancer, which relays it.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include "parse.h"

#define NEXT -1 /* both TCX_NEXT and TC_ACT_UNSPEC */
#define TCP_URG 0x20
#define PULL_BYTES 512

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
#define OPTION_TIMESTAMPS 8
#define TIMESTAMPS_BYTES 10
/* NOP, NOP, timestamps: what every stack sends in segments with data. */
#define USUAL_OPTIONS_BYTES 12
#define USUAL_OPTIONS bpf_htonl(0x0101080a)

/* The rule of one connection, in memory shared with user space. `version` is odd while user space
 * writes; 0: there is none. All in host order but addresses and ports. The last four fields belong to
 * the program. */
struct direct_rule {
	__u32 version;
	__u32 first;
	__u32 end;
	__u32 request_end;
	__u32 delta;
	__u32 ack;
	__u32 clock_offset;
	__u32 echo;
	__u16 window;
	__u8 has_end;
	__u8 has_clock;
	__u8 service[16];
	__u8 client[16];
	__be16 service_port;
	__be16 client_port;
	__u32 sent_end;   /* behind the last byte that the server has sent */
	__u32 sent_known; /* 0: no segment was seen yet */
	__u32 reserved;
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, __u32);
} direct_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct direct_rule);
} direct_rules SEC(".maps");

/* A TCP header with the usual options. */
struct header {
	struct tcphdr tcp;
	__u32 options;
	__be32 value;
	__be32 echo;
};

static __always_inline int before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

/* Returns true if the segment is of the rule. */
static __always_inline int is_direct(const struct direct_rule *rule, const struct segment *segment)
{
	int is_probe = !segment->payload && rule->sent_known && before(segment->seq, rule->sent_end);
	__u32 from = rule->first - is_probe;

	if ((segment->flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_URG | TCP_ACK)) != TCP_ACK)
		return 0;
	if (!segment->payload && !is_probe)
		return 0;
	if (before(segment->seq, from) || before(rule->request_end, segment->ack))
		return 0;
	return !rule->has_end || !before(rule->end, segment->seq + segment->payload);
}

/* Writes the addresses. The checksum of TCP covers them as a pseudo header. */
static __always_inline int rewrite_addresses(struct __sk_buff *skb, const struct segment *segment,
					     struct direct_rule *rule)
{
	__u32 check = segment->at + __builtin_offsetof(struct tcphdr, check);
	__u32 bytes = segment->key.family == 4 ? 4 : 16;
	__u32 at = sizeof(struct ethhdr) + (segment->key.family == 4 ? 12 : 8);
	struct {
		__u8 source[16];
		__u8 destination[16];
	} from, to;
	__s64 sum;

	__builtin_memcpy(from.source, segment->key.client, 16);
	__builtin_memcpy(from.destination, segment->key.service, 16);
	__builtin_memcpy(to.source, rule->service, 16);
	__builtin_memcpy(to.destination, rule->client, 16);
	/* The unused bytes of IPv4 addresses are zero in both. */
	sum = bpf_csum_diff((__be32 *)&from, sizeof(from), (__be32 *)&to, sizeof(to), 0);
	if (bpf_l4_csum_replace(skb, check, 0, sum, BPF_F_PSEUDO_HDR))
		return -1;
	if (segment->key.family == 4 &&
	    bpf_l3_csum_replace(skb, sizeof(struct ethhdr) + 10, 0, sum, 0))
		return -1;
	if (bytes == 4)
		return bpf_skb_store_bytes(skb, at, to.source, 4, 0) ||
		       bpf_skb_store_bytes(skb, at + 4, to.destination, 4, 0);
	return bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

/* Rewrites the segment. Returns 0 if it must go to the balancer; nothing has changed then. */
static __always_inline int translate(struct __sk_buff *skb, const struct segment *segment,
				     struct direct_rule *rule)
{
	__u32 at = segment->at, options = segment->bytes - segment->payload - sizeof(struct tcphdr);
	struct header old, new;
	__u32 bytes = sizeof(struct tcphdr);
	__s64 sum;

	__builtin_memset(&old, 0, sizeof(old));
	if (options == USUAL_OPTIONS_BYTES) {
		if (bpf_skb_load_bytes(skb, at, &old, sizeof(old)))
			return 0;
		if (old.options != USUAL_OPTIONS)
			return 0;
		bytes = sizeof(old);
	} else if (options || rule->has_clock) {
		return 0;
	} else if (bpf_skb_load_bytes(skb, at, &old, sizeof(struct tcphdr))) {
		return 0;
	}
	new = old;
	new.tcp.source = rule->service_port;
	new.tcp.dest = rule->client_port;
	new.tcp.seq = bpf_htonl(segment->seq + rule->delta);
	new.tcp.ack_seq = bpf_htonl(rule->ack);
	new.tcp.window = bpf_htons(rule->window);
	if (rule->has_clock) {
		new.value = bpf_htonl(bpf_ntohl(old.value) + rule->clock_offset);
		new.echo = bpf_htonl(rule->echo);
	} else if (options) {
		/* The client's connection has no timestamps: the option becomes NOPs. */
		new.options = 0x01010101;
		new.value = 0x01010101;
		new.echo = 0x01010101;
	}
	/* The checksum field is equal in both, so the difference is that of the others. */
	sum = bpf_csum_diff((__be32 *)&old, sizeof(old), (__be32 *)&new, sizeof(new), 0);
	if (rewrite_addresses(skb, segment, rule))
		return -1;
	if (bytes == sizeof(new)) {
		if (bpf_skb_store_bytes(skb, at, &new, 16, 0) ||
		    bpf_skb_store_bytes(skb, at + 18, (void *)&new + 18, sizeof(new) - 18, 0))
			return -1;
	} else if (bpf_skb_store_bytes(skb, at, &new, 16, 0)) {
		return -1;
	}
	if (bpf_l4_csum_replace(skb, at + __builtin_offsetof(struct tcphdr, check), 0, sum, 0))
		return -1;
	return 1;
}

static __always_inline int parsed(struct __sk_buff *skb, struct segment *segment)
{
	int kind = parse((void *)(long)skb->data, (void *)(long)skb->data_end, segment);

	/* Headers outside the linear part are pulled in once. */
	if (kind != PACKET_CUT || skb->data_end - skb->data >= skb->len ||
	    bpf_skb_pull_data(skb, skb->len < PULL_BYTES ? skb->len : PULL_BYTES))
		return kind;
	return parse((void *)(long)skb->data, (void *)(long)skb->data_end, segment);
}

SEC("classifier")
int direct_egress(struct __sk_buff *skb)
{
	struct segment segment;
	struct direct_rule *shared, rule;
	__u32 *index;

	if (parsed(skb, &segment) != PACKET_WHOLE)
		return NEXT;
	index = bpf_map_lookup_elem(&direct_flows, &segment.key);
	shared = index ? bpf_map_lookup_elem(&direct_rules, index) : 0;
	if (!shared)
		return NEXT;
	__u32 version = *(volatile __u32 *)&shared->version;
	__u32 end = segment.seq + segment.payload;

	__builtin_memcpy(&rule, shared, sizeof(rule));
	if (!rule.sent_known || before(rule.sent_end, end)) {
		shared->sent_end = end;
		shared->sent_known = 1;
	}
	if (!version || version & 1 || !is_direct(&rule, &segment))
		return NEXT;
	/* Another version now: `rule` may have fields of both. */
	if (*(volatile __u32 *)&shared->version != version)
		return NEXT;
	int result = translate(skb, &segment, &rule);

	if (!result)
		return NEXT;
	if (result < 0)
		return 2; /* TC_ACT_SHOT: half written; the server sends it again */
	__sync_fetch_and_add(&shared->packets, 1);
	__sync_fetch_and_add(&shared->bytes, segment.payload);
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
