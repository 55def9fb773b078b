/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Direct return at a server's host: segments of a response become segments of the client's connection.
 *
 *   link ingress: a datagram with a rule, authentic and new ─► the rule of its connection, which gets
 *                                                              an entry with its first one; if it has
 *                                                              a window, it goes on as the balancer's
 *                                                              acknowledgement with that window
 *                 a segment that this host's server sent ───► with the mark of egress, the balancer's
 *                                                              acknowledgement for it
 *                 another datagram to the port of rules ─────► dropped, counted
 *                 anything else ─────────────────────────────► unchanged
 *   link egress:  a connection without a rule ─────────────► unchanged
 *                 a SYN ───────────────────────────────────► unchanged; the rule is cleared
 *                 a segment that is not of the rule ───────► unchanged, to the balancer
 *                 a segment of the rule ───────────────────► rewritten, to the client
 *                 of a rule that awaits a head, the head ──► if it is fit, as one of the rule, and a copy
 *                                                            to the balancer
 *
 * The rule is that of src/rule.rs in the crate `splice`; a test compares the two. A rule that changes
 * while a program reads it does not apply: the segment goes to the balancer, which relays it. User
 * space removes the entries of idle connections, and raises the floor of their balancer's key before:
 * a removed datagram stays old.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include "checksum.h"
#include "datagram.h"
#include "cut.h"
#include "response_head.h"
#include "skb.h"

/* The rule of one connection. `version` is odd while a program writes; 0: there is none. All in host
 * order but addresses, ports, and the grant. */
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
	__u32 awaits_head;
	__u32 judged;       /* the version whose head is fit; odd: that before it has another head */
	__u32 head_end;     /* behind the head, if it is fit */
	__u32 response_end; /* behind the response, if it is fit */
	__u32 grant_ack;    /* for the server when a fit head leaves */
	__u32 grant_value;
	__u32 grant_echo;
	__u16 grant_window;
	__u8 has_grant;
	__u8 grant_has_clock;
	__u32 owner;      /* key of the balancer */
	__u32 reserved;
	__u64 counter;    /* of the newest datagram */
	__u64 packets;    /* sent directly */
};

/* Not allocated ahead: a program may use an element that user space has just removed, and only
 * memory of such elements is not used again before the program ends. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set at load */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, struct direct_rule);
} direct_flows SEC(".maps");

/* Secret of a balancer. Datagrams with numbers up to `floor` are old. */
struct direct_key {
	__u64 secret[2];
	__u64 floor;
	__u32 is_valid;
	__u32 reserved;
};

#define KEYS_MAX 256
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KEYS_MAX);
	__type(key, __u32);
	__type(value, struct direct_key);
} direct_keys SEC(".maps");

/* Order as in src/direct.rs. */
enum direct_count {
	DIRECT_TAKEN,    /* rules */
	DIRECT_FORGED,   /* dropped: a wrong tag, or the key of another balancer */
	DIRECT_FULL,     /* dropped: no place for another connection */
	DIRECT_OLD,      /* dropped: not newer than the connection's rule, or than the floor */
	DIRECT_FLOWS,    /* entries made */
	DIRECT_SEGMENTS, /* sent directly */
	DIRECT_BYTES,    /* of their payloads */
	DIRECT_COUNTS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DIRECT_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} direct_counts SEC(".maps");

/* Marks a copy of a segment, which goes to the balancer, in the upper half; the lower half has the number
 * of bytes of the payload that it keeps. */
#define COPY_MARK 0x756e0000
#define COPY_MARK_MASK 0xffff0000
/* Marks a segment of the server that becomes the acknowledgement which it is granted. */
#define GRANT_MARK 0x756f0000

/* UDP port of rules, in packet order; set at load, 0: none. */
volatile const __u16 direct_port = 0;

/* A TCP header with the usual options. */
struct header {
	struct tcphdr tcp;
	__u32 options;
	__be32 value;
	__be32 echo;
};

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

/* Reads the header. Returns its bytes; 0: the segment must go to the balancer. */
static __always_inline __u32 read_header(struct __sk_buff *skb, const struct segment *segment,
					 const struct direct_rule *rule, struct header *old)
{
	__u32 at = segment->at, options = segment->bytes - segment->payload - sizeof(struct tcphdr);

	__builtin_memset(old, 0, sizeof(*old));
	if (options == USUAL_OPTIONS_BYTES) {
		if (bpf_skb_load_bytes(skb, at, old, sizeof(*old)) || old->options != USUAL_OPTIONS)
			return 0;
		return sizeof(*old);
	}
	if (options || rule->has_clock || bpf_skb_load_bytes(skb, at, old, sizeof(struct tcphdr)))
		return 0;
	return sizeof(struct tcphdr);
}

/* Rewrites the segment with a header of so many bytes. Returns -1 if it is half written. */
static __always_inline int translate(struct __sk_buff *skb, const struct segment *segment,
				     struct direct_rule *rule, const struct header *was,
				     __u32 bytes)
{
	struct header old = *was, new = *was;
	__u32 at = segment->at;
	__s64 sum;

	new.tcp.source = rule->service_port;
	new.tcp.dest = rule->client_port;
	new.tcp.seq = bpf_htonl(segment->seq + rule->delta);
	new.tcp.ack_seq = bpf_htonl(rule->ack);
	new.tcp.window = bpf_htons(rule->window);
	if (rule->has_clock) {
		new.value = bpf_htonl(bpf_ntohl(old.value) + rule->clock_offset);
		new.echo = bpf_htonl(rule->echo);
	} else if (bytes == sizeof(new)) {
		/* The client's connection has no timestamps: the option becomes NOPs. */
		new.options = 0x01010101;
		new.value = 0x01010101;
		new.echo = 0x01010101;
	}
	/* The checksum field is equal in both, so the difference is that of the others. */
	sum = bpf_csum_diff((__be32 *)&old, sizeof(old), (__be32 *)&new, sizeof(new), 0);
	if (readdress(skb, at, segment->key.family, segment->key.client, rule->service))
		return -1;
	if (bytes == sizeof(new)) {
		if (bpf_skb_store_bytes(skb, at, &new, 16, 0) ||
		    bpf_skb_store_bytes(skb, at + 18, (void *)&new + 18, sizeof(new) - 18, 0))
			return -1;
	} else if (bpf_skb_store_bytes(skb, at, &new, 16, 0)) {
		return -1;
	}
	return bpf_l4_csum_replace(skb, at + __builtin_offsetof(struct tcphdr, check), 0, sum, 0);
}

/* Reads the head at the start of the payload. Returns true if the rule holds for it. A copy is cut, which a
 * complete checksum would not survive; what this host sends has a partial one here. */
static __always_inline int judge(struct __sk_buff *skb, struct segment *segment,
				 struct direct_rule *shared, struct direct_rule *rule, __u32 version)
{
	__u32 only = 0, count = segment->payload, at = segment->at + segment->bytes - count;
	struct head_work *work = bpf_map_lookup_elem(&head_works, &only);

	if (!work || !count || segment->seq != rule->first ||
	    !is_pending(segment, fold(pseudo_header(segment))))
		return 0;
	if (count > HEAD_BYTES_MAX)
		count = HEAD_BYTES_MAX;
	if (bpf_skb_load_bytes(skb, at, work->bytes, count))
		return 0;
	if (!is_fit(work, count) || work->head_bytes + work->body_bytes < segment->payload) {
		shared->judged = version | 1;
		return 0;
	}
	rule->head_end = rule->first + work->head_bytes;
	rule->response_end = rule->head_end + work->body_bytes;
	shared->head_end = rule->head_end;
	shared->response_end = rule->response_end;
	/* An exchange is a full barrier. */
	__sync_lock_test_and_set(&shared->judged, version);
	return 1;
}

/* Sends the balancer a copy of the segment with so many bytes of its payload. One that is lost comes again:
 * nothing is acknowledged before. */
static __always_inline void send_copy(struct __sk_buff *skb, __u32 bytes)
{
	__u32 mark = skb->mark;

	skb->mark = COPY_MARK | (bytes & 0xffff);
	bpf_clone_redirect(skb, skb->ifindex, 0);
	skb->mark = mark;
}

/* Lets the server send the rest of a response whose head is fit. */
static __always_inline void send_grant(struct __sk_buff *skb)
{
	__u32 mark = skb->mark;

	skb->mark = GRANT_MARK;
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = mark;
}

/* Cuts a copy, and tells the balancer by the urgent pointer, which means nothing without its flag. */
static __always_inline int cut_copy(struct __sk_buff *skb)
{
	__u32 kept = skb->mark & ~COPY_MARK_MASK;
	__be16 urgent = bpf_htons(1);
	struct segment segment;
	__u16 check;

	skb->mark = 0;
	if (parsed(skb, &segment) != PACKET_WHOLE || cut_payload(skb, &segment, kept))
		return SHOT;
	check = fold(pseudo_header(&segment));
	return bpf_skb_store_bytes(skb, segment.at + 16, &check, sizeof(check), 0) ||
			       bpf_skb_store_bytes(skb, segment.at + 18, &urgent, sizeof(urgent), 0) ?
		       SHOT :
		       NEXT;
}

static __always_inline void count_n(__u32 what, __u64 n)
{
	__u64 *counter = bpf_map_lookup_elem(&direct_counts, &what);

	if (counter)
		__sync_fetch_and_add(counter, n);
}

static __always_inline void count(__u32 what)
{
	count_n(what, 1);
}

/* Returns the offset of a datagram to the port of rules; 0 for another frame. */
static __always_inline __u32 find_datagram(struct __sk_buff *skb)
{
	__u32 at = sizeof(struct ethhdr);
	struct udphdr udp;
	__u8 protocol;

	if (!direct_port)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.ihl != 5 ||
		    ip.frag_off & bpf_htons(IPV4_FRAGMENT))
			return 0;
		protocol = ip.protocol;
		at += sizeof(ip);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, at + 6, &protocol, 1))
			return 0;
		at += sizeof(struct ipv6hdr);
	} else {
		return 0;
	}
	if (protocol != IPPROTO_UDP || bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)) ||
	    udp.dest != direct_port ||
	    udp.len != bpf_htons(sizeof(udp) + sizeof(struct rule_datagram)))
		return 0;
	return at + sizeof(udp);
}

/* Reads the version in order with the fields around it. */
static __always_inline __u32 version_of(struct direct_rule *rule)
{
#if defined(__TARGET_ARCH_x86)
	__u32 version = *(volatile __u32 *)&rule->version;

	asm volatile("" ::: "memory");
	return version;
#else
	return __sync_fetch_and_add(&rule->version, 0);
#endif
}

static __always_inline void write_rule(struct direct_rule *rule,
				       const struct rule_datagram *datagram, __u32 version)
{
	__u16 flags = bpf_ntohs(datagram->flags);

	rule->counter = bpf_be64_to_cpu(datagram->counter);
	rule->first = bpf_ntohl(datagram->first);
	rule->end = bpf_ntohl(datagram->end);
	rule->request_end = bpf_ntohl(datagram->request_end);
	rule->delta = bpf_ntohl(datagram->delta);
	rule->ack = bpf_ntohl(datagram->ack);
	rule->clock_offset = bpf_ntohl(datagram->clock_offset);
	rule->echo = bpf_ntohl(datagram->echo);
	rule->window = bpf_ntohs(datagram->window);
	rule->has_end = !!(flags & DATAGRAM_HAS_END);
	rule->has_clock = !!(flags & DATAGRAM_HAS_CLOCK);
	rule->awaits_head = !!(flags & DATAGRAM_AWAITS_HEAD);
	rule->has_grant = !!(flags & DATAGRAM_HAS_GRANT);
	rule->grant_has_clock = !!(flags & DATAGRAM_GRANT_CLOCK);
	rule->grant_ack = datagram->grant_ack;
	rule->grant_value = datagram->grant_value;
	rule->grant_echo = datagram->grant_echo;
	rule->grant_window = datagram->grant_window;
	rule->service_port = datagram->ports[2];
	rule->client_port = datagram->ports[3];
	__builtin_memcpy(rule->service, datagram->addresses[2], 16);
	__builtin_memcpy(rule->client, datagram->addresses[3], 16);
	version = (version | 1) + 1;
	/* An exchange is a full barrier. */
	__sync_lock_test_and_set(&rule->version, version ? version : 2);
}

/* Returns the entry of a connection, and makes it with the first datagram; 0 if the table is full. */
static __always_inline struct direct_rule *entry_of(const struct flow_key *key, __u32 owner)
{
	struct direct_rule *rule = bpf_map_lookup_elem(&direct_flows, key);
	struct direct_rule blank;

	if (rule)
		return rule;
	__builtin_memset(&blank, 0, sizeof(blank));
	blank.owner = owner;
	/* Fails also if another processor has just made it, which the lookup finds. */
	if (!bpf_map_update_elem(&direct_flows, key, &blank, BPF_NOEXIST))
		count(DIRECT_FLOWS);
	return bpf_map_lookup_elem(&direct_flows, key);
}

/* Makes the datagram an acknowledgement of the balancer for the server's socket: that may send more, and
 * the rule for it is there. Returns 0 if it can go on. */
static __always_inline int become_ack(struct __sk_buff *skb, __u32 at,
				      const struct rule_datagram *datagram)
{
	int has_clock = !!(datagram->flags & bpf_htons(DATAGRAM_GRANT_CLOCK));
	__u32 bytes = has_clock ? sizeof(struct header) : sizeof(struct tcphdr);
	__u32 ip_at = sizeof(struct ethhdr), tcp_at = at - sizeof(struct udphdr);
	struct header header;
	__s64 sum;

	__builtin_memset(&header, 0, sizeof(header));
	header.tcp.source = datagram->ports[1];
	header.tcp.dest = datagram->ports[0];
	header.tcp.seq = datagram->request_end;
	header.tcp.ack_seq = datagram->grant_ack;
	header.tcp.doff = bytes / 4;
	header.tcp.ack = 1;
	header.tcp.window = datagram->grant_window;
	if (has_clock) {
		header.options = USUAL_OPTIONS;
		header.value = datagram->grant_value;
		header.echo = datagram->grant_echo;
	}
	sum = bpf_csum_diff(0, 0, (__be32 *)datagram->addresses, 32,
			    bpf_htonl(bytes + IPPROTO_TCP));
	sum = bpf_csum_diff(0, 0, (__be32 *)&header, sizeof(header), sum);
	header.tcp.check = ~fold(sum);
	if (bpf_skb_change_tail(skb, tcp_at + bytes, 0))
		return -1;
	if (datagram->flags & bpf_htons(DATAGRAM_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, ip_at, &ip, sizeof(ip)))
			return -1;
		ip.payload_len = bpf_htons(bytes);
		ip.nexthdr = IPPROTO_TCP;
		__builtin_memcpy(&ip.saddr, datagram->addresses[1], 16);
		__builtin_memcpy(&ip.daddr, datagram->addresses[0], 16);
		if (bpf_skb_store_bytes(skb, ip_at, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			return -1;
	} else {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ip_at, &ip, sizeof(ip)))
			return -1;
		ip.tot_len = bpf_htons(sizeof(ip) + bytes);
		ip.protocol = IPPROTO_TCP;
		__builtin_memcpy(&ip.saddr, datagram->addresses[1], 4);
		__builtin_memcpy(&ip.daddr, datagram->addresses[0], 4);
		ip.check = 0;
		ip.check = ~fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0));
		if (bpf_skb_store_bytes(skb, ip_at, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
			return -1;
	}
	return bpf_skb_store_bytes(skb, tcp_at, &header, sizeof(struct tcphdr),
				   BPF_F_RECOMPUTE_CSUM) ||
	       (has_clock &&
		bpf_skb_store_bytes(skb, tcp_at + sizeof(struct tcphdr), &header.options,
				    USUAL_OPTIONS_BYTES, BPF_F_RECOMPUTE_CSUM));
}

/* Makes a segment that the server has sent the acknowledgement that its rule grants. */
static __always_inline int become_grant(struct __sk_buff *skb)
{
	struct rule_datagram datagram;
	struct segment segment;
	struct direct_rule *rule;

	skb->mark = 0;
	if (parsed(skb, &segment) != PACKET_WHOLE)
		return SHOT;
	rule = bpf_map_lookup_elem(&direct_flows, &segment.key);
	if (!rule)
		return SHOT;
	__builtin_memset(&datagram, 0, sizeof(datagram));
	datagram.ports[0] = segment.key.client_port;
	datagram.ports[1] = segment.key.service_port;
	__builtin_memcpy(datagram.addresses[0], segment.key.client, 16);
	__builtin_memcpy(datagram.addresses[1], segment.key.service, 16);
	datagram.request_end = bpf_htonl(rule->request_end);
	datagram.grant_ack = rule->grant_ack;
	datagram.grant_window = rule->grant_window;
	datagram.grant_value = rule->grant_value;
	datagram.grant_echo = rule->grant_echo;
	datagram.flags = bpf_htons((rule->grant_has_clock ? DATAGRAM_GRANT_CLOCK : 0) |
				   (segment.key.family == 6 ? DATAGRAM_IPV6 : 0));
	/* Its frame is addressed to another host. */
	if (become_ack(skb, segment.at + sizeof(struct udphdr), &datagram) ||
	    bpf_skb_change_type(skb, 0))
		return SHOT;
	return NEXT;
}

SEC("classifier")
int direct_ingress(struct __sk_buff *skb)
{
	struct rule_datagram datagram;
	struct flow_key key;
	__u32 at;

	if (skb->mark == GRANT_MARK)
		return become_grant(skb);
	at = find_datagram(skb);
	if (!at || bpf_skb_load_bytes(skb, at, &datagram, sizeof(datagram)) ||
	    datagram.magic != bpf_cpu_to_be64(DATAGRAM_MAGIC))
		return NEXT;
	__u32 number = bpf_ntohl(datagram.key);
	struct direct_key *secret = bpf_map_lookup_elem(&direct_keys, &number);

	if (!secret || !secret->is_valid ||
	    tag_of(&datagram, secret->secret) != bpf_be64_to_cpu(datagram.tag)) {
		count(DIRECT_FORGED);
		return SHOT;
	}
	__u64 counter = bpf_be64_to_cpu(datagram.counter);

	if (counter <= secret->floor) {
		count(DIRECT_OLD);
		return SHOT;
	}
	__builtin_memset(&key, 0, sizeof(key));
	__builtin_memcpy(key.client, datagram.addresses[0], 16);
	__builtin_memcpy(key.service, datagram.addresses[1], 16);
	key.client_port = datagram.ports[0];
	key.service_port = datagram.ports[1];
	key.family = datagram.flags & bpf_htons(DATAGRAM_IPV6) ? 6 : 4;
	struct direct_rule *rule = entry_of(&key, number);

	if (!rule) {
		count(DIRECT_FULL);
		return SHOT;
	}
	if (rule->owner != number) {
		count(DIRECT_FORGED);
		return SHOT;
	}
	__u32 version = version_of(rule);

	/* An odd version: another processor writes a rule of this connection. */
	if (counter <= rule->counter || version & 1 ||
	    __sync_val_compare_and_swap(&rule->version, version, version | 1) != version) {
		count(DIRECT_OLD);
		return SHOT;
	}
	write_rule(rule, &datagram, version);
	count(DIRECT_TAKEN);
	/* One of a rule that awaits a head is for later. */
	if ((datagram.flags & bpf_htons(DATAGRAM_HAS_GRANT | DATAGRAM_AWAITS_HEAD)) ==
		    bpf_htons(DATAGRAM_HAS_GRANT) &&
	    !become_ack(skb, at, &datagram))
		return NEXT;
	return SHOT;
}

SEC("classifier")
int direct_egress(struct __sk_buff *skb)
{
	struct segment segment;
	struct direct_rule *shared, rule;
	struct header header;
	__u32 version, end, bytes;

	if ((skb->mark & COPY_MARK_MASK) == COPY_MARK)
		return cut_copy(skb);
	if (parsed(skb, &segment) != PACKET_WHOLE)
		return NEXT;
	shared = bpf_map_lookup_elem(&direct_flows, &segment.key);
	if (!shared)
		return NEXT;
	/* A new connection with the same addresses. At least a round trip passes before its first rule,
	 * so no program mistakes that one for the rule that it began to read. */
	if (segment.flags & TCP_SYN) {
		shared->sent_known = 0;
		shared->judged = 0;
		__sync_lock_test_and_set(&shared->version, 0);
		return NEXT;
	}
	version = version_of(shared);
	end = segment.seq + segment.payload;
	__builtin_memcpy(&rule, shared, sizeof(rule));
	if (!rule.sent_known || before(rule.sent_end, end)) {
		shared->sent_end = end;
		shared->sent_known = 1;
	}
	if (!version || version & 1)
		return NEXT;
	if (rule.awaits_head && rule.judged == (version | 1))
		return NEXT;
	if (rule.awaits_head && rule.judged == version) {
		rule.has_end = 1;
		rule.end = rule.response_end;
	}
	if (!is_direct(&rule, &segment))
		return NEXT;
	bytes = read_header(skb, &segment, &rule, &header);
	if (!bytes)
		return NEXT;
	/* Another version now: `rule` may have fields of both. */
	if (version_of(shared) != version)
		return NEXT;
	if (rule.awaits_head && rule.judged != version &&
	    !judge(skb, &segment, shared, &rule, version))
		return NEXT;
	if (rule.awaits_head && segment.payload && before(segment.seq, rule.head_end)) {
		send_copy(skb, rule.head_end - segment.seq);
		if (rule.has_grant && rule.judged != version && end != rule.response_end)
			send_grant(skb);
	}
	if (translate(skb, &segment, &rule, &header, bytes))
		return SHOT; /* half written; the server sends it again */
	__sync_fetch_and_add(&shared->packets, 1);
	count(DIRECT_SEGMENTS);
	count_n(DIRECT_BYTES, segment.payload);
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
