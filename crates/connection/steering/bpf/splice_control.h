/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Requests of the balancer's process, which runs this program on a frame (BPF_PROG_TEST_RUN). The frame is
 * an acknowledgement to the server, without numbers; the program sends it if one is due. For a beginning
 * with an agent it is a datagram to the server's host without a rule, which the program writes. Numbers of
 * the sockets are read from the kernel, so the process need not know them. */
#pragma once

#include "datagram.h"
#include "splice_begin.h"

enum splice_operation {
	CONTROL_OPEN_CLIENT,
	CONTROL_OPEN_SERVER,
	CONTROL_BEGIN,
	CONTROL_LENGTH, /* sets it, and sends the acknowledgement that was kept until the head is known */
	CONTROL_SETTLE, /* sends the acknowledgement that is owed */
	CONTROL_END,
	CONTROL_ABORT,  /* ends a splice whose connections are closed, or of which no byte was direct */
	CONTROL_EXTEND, /* lets the server send `length_bytes` behind what was read, and the limit */
	CONTROL_ACK,    /* sends the client the acknowledgement that is kept */
	CONTROL_LIMIT,  /* sets the limit, and tells the server of the room if there is none */
};

enum splice_result {
	CONTROL_DONE,
	CONTROL_NO_SOCKET,
	CONTROL_NOT_OPEN,
	CONTROL_BUSY,   /* not complete, or bytes are under way */
	CONTROL_OWING,  /* done, but the acknowledgement could not be sent */
	CONTROL_UNFIT,  /* plus enum splice_unfit */
};

/* A request, in memory shared with user space; one for each worker. */
struct splice_request {
	__u32 operation;
	__u32 result;
	__u32 client; /* slots */
	__u32 server;
	__u32 has_length;
	__u32 length_bytes;
	__u32 is_reusable;
	__u32 limit_bytes;
	__u32 is_ordered;
	__u32 is_forced;     /* an acknowledgement although none is owed */
	__u32 awaits_head;   /* the server's host looks at the head */
	__u32 expected_bytes;
	__u32 unsent_bytes;  /* of the request */
	__u32 has_agent;     /* the server's host takes a rule */
	struct splice_rule rule;
	__u64 secret[2];     /* of the datagram's key */
	__u64 counter;       /* of the datagram */
	__u32 key;
	__u32 udp_sum;       /* of the datagram's headers */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOCKS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct splice_request);
} splice_requests SEC(".maps");

static __always_inline void open_clock(struct splice_clock *clock, const struct socket_state *socket,
				       __u64 now_ms)
{
	/* The shift stays: it is of the addresses, as `bypassed` is. */
	clock->is_used = socket->has_timestamps;
	clock->peer = socket->ts_recent;
	/* The socket keeps echoes without its offset. */
	clock->echoed = socket->rcv_tsecr + socket->tsoffset + clock->shift;
	/* As in a segment that the socket would send now. */
	clock->value = now_ms + socket->tsoffset;
	clock->at_ms = now_ms;
}

/* What earlier connections of the same addresses have bypassed stays: the peer's numbers are ahead by it
 * from the first segment on. */
static __always_inline void open_client(struct splice_client *flow,
					const struct socket_state *socket, __u64 now_ms)
{
	flow->sent_end = socket->snd_nxt + flow->bypassed;
	flow->acked = socket->snd_una + flow->bypassed;
	flow->socket_acked = flow->acked;
	flow->window_bytes = socket->snd_wnd;
	flow->window_max_bytes = socket->snd_wnd;
	flow->scale = socket->snd_wscale;
	flow->receive_max_bytes = 0xffffu << (socket->rcv_wscale & 15);
	flow->received = socket->rcv_nxt;
	flow->window = socket->rcv_wnd >> (socket->rcv_wscale & 15);
	flow->is_reset = 0;
	flow->hold = HOLD_OFF;
	open_clock(&flow->clock, socket, now_ms);
}

static __always_inline void open_server(struct splice_server *flow,
					const struct socket_state *socket, __u64 now_ms)
{
	flow->passed_end = socket->rcv_nxt + flow->bypassed;
	flow->acked = socket->rcv_wup + flow->bypassed;
	flow->granted = flow->acked + socket->rcv_wnd;
	flow->told = flow->granted;
	flow->socket_edge = flow->granted;
	flow->request_end = socket->snd_nxt;
	flow->scale = socket->rcv_wscale;
	flow->peer_seen = 0;
	flow->peer_value = 0;
	flow->peer_at_ms = 0;
	open_clock(&flow->clock, socket, now_ms);
}

/* Makes the frame the acknowledgement and sends it. */
static __always_inline int send_ack(struct __sk_buff *skb, struct splice_work *work,
				    const struct splice_head *to)
{
	struct segment packet;

	if (!to->ifindex || parsed(skb, &packet) != PACKET_WHOLE ||
	    read_segment(skb, &packet, work))
		return -1;
	compose(work, 1, packet.key.client_port, packet.key.service_port);
	if (bpf_skb_store_bytes(skb, 0, to->mac, sizeof(to->mac), 0) ||
	    write_header(skb, packet.at, work))
		return -1;
	skb->mark = MARK;
	return bpf_clone_redirect(skb, to->ifindex, 0);
}

static __always_inline __u32 run_open(struct __sk_buff *skb, const struct splice_request *request)
{
	__u32 client = request->client, server = request->server, number;
	int is_client = request->operation == CONTROL_OPEN_CLIENT;
	struct splice_client_slot *c = bpf_map_lookup_elem(&splice_clients, &client);
	struct splice_server_slot *s = bpf_map_lookup_elem(&splice_servers, &server);
	struct splice_lock *lock;
	struct socket_state socket;
	__u64 now_ms = time_ms();

	if (is_client ? !c : !s)
		return CONTROL_NOT_OPEN;
	number = is_client && c ? c->head.lock : s ? s->head.lock : 0;
	lock = bpf_map_lookup_elem(&splice_locks, &number);
	if (!lock)
		return CONTROL_NOT_OPEN;
	__builtin_memset(&socket, 0, sizeof(socket));
	if (is_client && c) {
		if (!find_socket(skb, &c->head.key, &socket))
			return CONTROL_NO_SOCKET;
		bpf_spin_lock(&lock->lock);
		open_client(&c->flow, &socket, now_ms);
		c->splice.is_active = 0;
		c->head.peer = NONE;
		c->head.is_open = 1;
		bpf_spin_unlock(&lock->lock);
	} else if (s) {
		if (!find_socket(skb, &s->head.key, &socket))
			return CONTROL_NO_SOCKET;
		bpf_spin_lock(&lock->lock);
		open_server(&s->flow, &socket, now_ms);
		s->flow.limit_bytes = request->limit_bytes;
		s->flow.limit_end = s->flow.passed_end + request->limit_bytes;
		s->head.peer = NONE;
		s->head.is_open = 1;
		bpf_spin_unlock(&lock->lock);
	}
	return CONTROL_DONE;
}

/* Writes the rule, and the acknowledgement if the server is owed one, into the datagram. */
static __always_inline void write_datagram(struct rule_datagram *datagram,
					   const struct splice_request *request,
					   const struct splice_head *client,
					   const struct splice_head *server,
					   const struct splice_segment *grant)
{
	const struct splice_rule *rule = &request->rule;
	__u16 flags = (rule->has_end ? DATAGRAM_HAS_END : 0) |
		      (rule->has_clock ? DATAGRAM_HAS_CLOCK : 0) |
		      (rule->awaits_head ? DATAGRAM_AWAITS_HEAD : 0) |
		      (server->key.family == 6 ? DATAGRAM_IPV6 : 0);

	__builtin_memset(datagram, 0, sizeof(*datagram));
	datagram->magic = bpf_cpu_to_be64(DATAGRAM_MAGIC);
	datagram->counter = bpf_cpu_to_be64(request->counter);
	datagram->key = bpf_htonl(request->key);
	datagram->window = bpf_htons(rule->window);
	datagram->first = bpf_htonl(rule->first);
	datagram->end = bpf_htonl(rule->end);
	datagram->request_end = bpf_htonl(rule->request_end);
	datagram->delta = bpf_htonl(rule->delta);
	datagram->ack = bpf_htonl(rule->ack);
	datagram->clock_offset = bpf_htonl(rule->clock_offset);
	datagram->echo = bpf_htonl(rule->echo);
	datagram->ports[0] = server->key.client_port;
	datagram->ports[1] = server->key.service_port;
	datagram->ports[2] = client->key.service_port;
	datagram->ports[3] = client->key.client_port;
	__builtin_memcpy(datagram->addresses[0], server->key.client, 16);
	__builtin_memcpy(datagram->addresses[1], server->key.service, 16);
	__builtin_memcpy(datagram->addresses[2], client->key.service, 16);
	__builtin_memcpy(datagram->addresses[3], client->key.client, 16);
	if (grant) {
		flags |= DATAGRAM_HAS_GRANT | (grant->has_timestamps ? DATAGRAM_GRANT_CLOCK : 0);
		datagram->grant_ack = bpf_htonl(grant->ack);
		datagram->grant_window = bpf_htons(grant->window);
		datagram->grant_value = bpf_htonl(grant->value);
		datagram->grant_echo = bpf_htonl(grant->echo);
	}
	datagram->flags = bpf_htons(flags);
	datagram->tag = bpf_cpu_to_be64(tag_of(datagram, request->secret));
}

/* Makes the frame the datagram and sends it. */
static __always_inline int send_datagram(struct __sk_buff *skb, const struct splice_request *request,
					 const struct rule_datagram *datagram,
					 const struct splice_head *to)
{
	__u32 at = sizeof(struct ethhdr) + (to->key.family == 4 ? 20 : 40);
	__s64 sum = bpf_csum_diff(0, 0, (__be32 *)datagram, sizeof(*datagram), request->udp_sum);
	__u16 check = ~fold(sum);

	if (!check)
		check = 0xffff;
	if (bpf_skb_store_bytes(skb, 0, to->mac, sizeof(to->mac), 0) ||
	    bpf_skb_store_bytes(skb, at + __builtin_offsetof(struct udphdr, check), &check,
				sizeof(check), 0) ||
	    bpf_skb_store_bytes(skb, at + sizeof(struct udphdr), datagram, sizeof(*datagram), 0))
		return -1;
	skb->mark = MARK;
	return bpf_clone_redirect(skb, to->ifindex, 0);
}

static __always_inline __u32 run_begin(struct __sk_buff *skb, struct splice_request *request,
				       struct splice_client_slot *c, struct splice_server_slot *s,
				       struct splice_lock *lock, struct splice_work *work,
				       const struct socket_state *client,
				       const struct socket_state *server)
{
	struct splice_start start = {
		.request_end = server->write_seq + request->unsent_bytes,
		.has_length = request->has_length,
		.length_bytes = request->length_bytes,
		/* No segment of the server is longer. */
		.segment_bytes = request->is_ordered ? server->advmss : 0,
		.awaits_head = request->awaits_head,
		.expected_bytes = request->expected_bytes,
		.is_judged_here = !request->has_agent,
	};
	__u64 now_ms = time_ms();
	__u32 unfit = are_sockets_fit(s, client, server);
	int is_owed = 0;

	if (unfit != SPLICE_FIT)
		return CONTROL_UNFIT + unfit;
	start_from(&start, client, server);
	bpf_spin_lock(&lock->lock);
	unfit = join(c, request->client, s, request->server, &start, &request->rule, now_ms);
	if (unfit == SPLICE_FIT) {
		if (start.awaits_head && request->has_agent) {
			splice_grant_early(&c->flow, &s->flow, &c->splice, start.expected_bytes,
					   &work->ack, now_ms);
			is_owed = 1;
		} else {
			is_owed = splice_owed_ack(&c->flow, &s->flow, &c->splice, &work->ack,
						  now_ms);
		}
	}
	bpf_spin_unlock(&lock->lock);
	if (unfit != SPLICE_FIT)
		return CONTROL_UNFIT + unfit;
	if (!request->has_agent) {
		if (!is_owed || !send_ack(skb, work, &s->head))
			return CONTROL_DONE;
		count(SPLICE_UNSENT);
		return CONTROL_OWING;
	}
	write_datagram(&work->datagram, request, &c->head, &s->head, is_owed ? &work->ack : 0);
	if (send_datagram(skb, request, &work->datagram, &s->head)) {
		count(SPLICE_UNSENT);
		return CONTROL_OWING;
	}
	return CONTROL_DONE;
}

static __always_inline __u32 run_length(struct __sk_buff *skb, const struct splice_request *request,
					struct splice_client_slot *c, struct splice_server_slot *s,
					struct splice_lock *lock, struct splice_work *work)
{
	__u64 now_ms = time_ms();
	int is_owed = 0;

	bpf_spin_lock(&lock->lock);
	if (c->splice.is_active) {
		splice_set_length(&c->flow, &c->splice, request->length_bytes);
		is_owed = splice_owed_ack(&c->flow, &s->flow, &c->splice, &work->ack, now_ms);
	}
	bpf_spin_unlock(&lock->lock);
	if (is_owed && send_ack(skb, work, &s->head)) {
		count(SPLICE_UNSENT);
		return CONTROL_OWING;
	}
	return CONTROL_DONE;
}

static __always_inline __u32 run_settle(struct __sk_buff *skb, const struct splice_request *request,
					struct splice_client_slot *c, struct splice_server_slot *s,
					struct splice_lock *lock, struct splice_work *work)
{
	__u64 now_ms = time_ms();
	int is_owed;

	bpf_spin_lock(&lock->lock);
	c->splice.owes_ack |= !!request->is_forced;
	is_owed = c->splice.is_active &&
		  splice_owed_ack(&c->flow, &s->flow, &c->splice, &work->ack, now_ms);
	bpf_spin_unlock(&lock->lock);
	if (is_owed && send_ack(skb, work, &s->head)) {
		count(SPLICE_UNSENT);
		return CONTROL_OWING;
	}
	return CONTROL_DONE;
}

static __always_inline __u32 run_end(struct __sk_buff *skb, struct splice_request *request,
				     struct splice_client_slot *c, struct splice_server_slot *s,
				     struct splice_lock *lock, struct splice_work *work,
				     const struct socket_state *client,
				     const struct socket_state *server)
{
	__u64 now_ms = time_ms();
	int ended, is_reusable = 0;

	/* The balancer has read what came to the server's socket, and the client has what it wrote. */
	if (server->copied_seq != server->rcv_nxt || client->snd_una != client->write_seq)
		return CONTROL_BUSY;
	bpf_spin_lock(&lock->lock);
	ended = splice_end(&c->flow, &s->flow, &c->splice, server->rcv_nxt, client->write_seq,
			   &is_reusable, &work->ack, now_ms);
	if (ended != SPLICE_NOT_ENDED) {
		c->head.peer = NONE;
		s->head.peer = NONE;
	}
	bpf_spin_unlock(&lock->lock);
	if (ended == SPLICE_NOT_ENDED)
		return CONTROL_BUSY;
	request->is_reusable = is_reusable;
	if (ended == SPLICE_ENDED_OWING && send_ack(skb, work, &s->head)) {
		count(SPLICE_UNSENT);
		return CONTROL_OWING;
	}
	return CONTROL_DONE;
}

static __always_inline __u32 run_abort(struct splice_client_slot *c, struct splice_server_slot *s,
				       struct splice_lock *lock)
{
	bpf_spin_lock(&lock->lock);
	c->splice.is_active = 0;
	c->head.peer = NONE;
	s->head.peer = NONE;
	if (s->wish.state == WISH_MADE)
		s->wish.state = WISH_NONE;
	bpf_spin_unlock(&lock->lock);
	return CONTROL_DONE;
}

static __always_inline __u32 run_limit(struct __sk_buff *skb, const struct splice_request *request,
				       struct splice_work *work)
{
	__u32 server = request->server, number;
	struct splice_server_slot *s = bpf_map_lookup_elem(&splice_servers, &server);
	int is_extended = request->operation == CONTROL_EXTEND, is_told = 0, is_more;
	struct socket_state socket;
	struct splice_lock *lock;
	__u64 now_ms = time_ms();

	if (!s || !s->head.is_open)
		return CONTROL_NOT_OPEN;
	__builtin_memset(&socket, 0, sizeof(socket));
	if (is_extended && !find_socket(skb, &s->head.key, &socket))
		return CONTROL_NO_SOCKET;
	number = s->head.lock;
	lock = bpf_map_lookup_elem(&splice_locks, &number);
	if (!lock)
		return CONTROL_NOT_OPEN;
	is_more = is_extended || !request->limit_bytes;
	bpf_spin_lock(&lock->lock);
	if (is_extended) {
		server_extend(&s->flow, socket.copied_seq, request->length_bytes);
	} else {
		s->flow.limit_bytes = request->limit_bytes;
		s->flow.limit_end = s->flow.passed_end + request->limit_bytes;
	}
	if (is_more && s->head.peer == NONE) {
		server_room(&s->flow, &work->ack, now_ms);
		is_told = 1;
	}
	bpf_spin_unlock(&lock->lock);
	if (is_told && send_ack(skb, work, &s->head)) {
		count(SPLICE_UNSENT);
		return CONTROL_OWING;
	}
	return CONTROL_DONE;
}

static __always_inline __u32 run_ack(struct __sk_buff *skb, const struct splice_request *request,
				     struct splice_work *work)
{
	__u32 client = request->client, number;
	struct splice_client_slot *c = bpf_map_lookup_elem(&splice_clients, &client);
	struct splice_lock *lock;
	__u64 now_ms = time_ms();
	int is_kept;

	if (!c || !c->head.is_open)
		return CONTROL_NOT_OPEN;
	number = c->head.lock;
	lock = bpf_map_lookup_elem(&splice_locks, &number);
	if (!lock)
		return CONTROL_NOT_OPEN;
	bpf_spin_lock(&lock->lock);
	is_kept = client_kept_ack(&c->flow, &work->ack, now_ms);
	bpf_spin_unlock(&lock->lock);
	if (is_kept && send_ack(skb, work, &c->head)) {
		count(SPLICE_UNSENT);
		return CONTROL_OWING;
	}
	return CONTROL_DONE;
}

static __always_inline __u32 run_pair(struct __sk_buff *skb, struct splice_request *request,
				      struct splice_work *work)
{
	__u32 client = request->client, server = request->server, number;
	struct splice_client_slot *c = bpf_map_lookup_elem(&splice_clients, &client);
	struct splice_server_slot *s = bpf_map_lookup_elem(&splice_servers, &server);
	struct socket_state theirs, ours;
	struct splice_lock *lock;

	if (!c || !s || !c->head.is_open || !s->head.is_open || c->head.lock != s->head.lock)
		return CONTROL_NOT_OPEN;
	number = c->head.lock;
	lock = bpf_map_lookup_elem(&splice_locks, &number);
	if (!lock)
		return CONTROL_NOT_OPEN;
	switch (request->operation) {
	case CONTROL_LENGTH:
		return run_length(skb, request, c, s, lock, work);
	case CONTROL_SETTLE:
		return run_settle(skb, request, c, s, lock, work);
	case CONTROL_ABORT:
		return run_abort(c, s, lock);
	}
	__builtin_memset(&ours, 0, sizeof(ours));
	__builtin_memset(&theirs, 0, sizeof(theirs));
	if (!find_socket(skb, &c->head.key, &ours) || !find_socket(skb, &s->head.key, &theirs))
		return CONTROL_NO_SOCKET;
	if (request->operation == CONTROL_BEGIN)
		return run_begin(skb, request, c, s, lock, work, &ours, &theirs);
	return run_end(skb, request, c, s, lock, work, &ours, &theirs);
}

/* `mark` of the frame is the number of the request. */
SEC("classifier")
int splice_control(struct __sk_buff *skb)
{
	__u32 number = skb->mark;
	struct splice_request *request = bpf_map_lookup_elem(&splice_requests, &number);
	struct splice_work *work = bpf_map_lookup_elem(&splice_request_works, &number);

	if (!request || !work)
		return CONTROL_NOT_OPEN;
	if (request->operation == CONTROL_OPEN_CLIENT || request->operation == CONTROL_OPEN_SERVER)
		request->result = run_open(skb, request);
	else if (request->operation == CONTROL_LIMIT || request->operation == CONTROL_EXTEND)
		request->result = run_limit(skb, request, work);
	else if (request->operation == CONTROL_ACK)
		request->result = run_ack(skb, request, work);
	else
		request->result = run_pair(skb, request, work);
	return request->result;
}
