/*
 * The copy service as a model, part 1: what is shared. Lines of the ring, memory, and the rules by
 * which service and client decide. The file that includes this one sets the bounds:
 *
 *   TASKS SLOTS SEGS BUFFERS   tickets in all (at most 4), slots of the ring, segments (at most 2)
 *   WORKERS THREADS LENGTH     threads of the service, of the client, operations of one of these
 *   FINE                       1: lines are written and looked over word by word
 *   ABORTS HANDLERS DEATH      1: the service takes aborts, runs handlers' half, may die
 *
 * and may define one BUG_..., a mistake that the checker must find.
 */
#define RETIRES (SLOTS < TASKS || HANDLERS)
#define OURS (DEATH && THREADS > 1)
#define NONE 15
#define ALL ((1 << SEGS) - 1)
#define CELLS (BUFFERS * SEGS)
#define CELL(b, s) ((b) * SEGS + (s))
#define BIT(mask, i) (((mask) >> (i)) & 1)

#if FINE
#define LINE /* word by word */
#else
#define LINE atomic
#endif

/* Memory, and what memory would be if every copy were a memcpy at the moment of its ticket. */
#define TORN 253
#define FREED 254
#define ANY 255
byte mem[CELLS];
byte want[CELLS];
/* Who is in the middle of a copy: a race is an error even when the value comes out right. */
byte reading[CELLS];
bit writing[CELLS];

/* The ring. A generation is the ticket plus one: for one slot that says the same. */
#define SLOT(t) ((t) % SLOTS)
#define GEN(t) ((t) + 1)
byte head;
byte tail;
byte line[SLOTS];      /* word 0 of the task line: the generation, stored last */
byte body[SLOTS];      /* the other words: the generation whose fields they are */
byte claim_gen[SLOTS]; /* claim word: generation and bits change together */
byte claim[SLOTS];
byte done_gen[SLOTS]; /* done word */
byte done[SLOTS];
#if HANDLERS
#define DUE 1
#define RUN 2
byte state_gen[SLOTS]; /* state word: nothing, due, run */
byte state[SLOTS];
byte ran[TASKS];
#endif

/* Fields of the task of a ticket: what a line holds once it is written. */
byte dst[TASKS];
byte src[TASKS];
byte lazy;     /* mask of tickets */
byte handlers; /* mask of tickets */

byte seen;    /* tickets that the service has drained */
byte waiting; /* clients that wait for a slot: what is lazy is due */
byte ended;   /* clients whose program is over */
byte left;    /* clients that wait for nothing any more */
bit hasty;    /* lazy tasks may be done at any time, not only when they must */
bit nap;      /* the service may sleep once, until somebody waits for it */
#if ABORTS
byte abort_ring; /* mask of tickets: the sync ring */
byte aborting;   /* mask: taken from there */
byte abort_head; /* what must be drained before these are looked at */
#endif
#if DEATH
bit mortal;
bit kill;
byte dead;
bit recovering;
bit recovered;
#define NOTICED (dead == WORKERS && !recovered)
#else
#define recovered 0
#define NOTICED 0
#endif
#if OURS
/* What a thread of the client has claimed, or is about to: generation, bits; the client's own
 * memory, one for each thread. */
byte ours_gen[THREADS];
byte ours[THREADS];
#endif

/* Retired is done: a generation that differs says so. */
#define DONE(t, s) (done_gen[SLOT(t)] != GEN(t) || BIT(done[SLOT(t)], s))
#define TAKEN(t, s) (claim_gen[SLOT(t)] != GEN(t) || BIT(claim[SLOT(t)], s))
#define WHOLE(t) (done_gen[SLOT(t)] != GEN(t) || done[SLOT(t)] == ALL)

#ifdef BUG_CLAIM_WITHOUT_GENERATION
#define CLAIMABLE(t, s) (!BIT(claim[SLOT(t)], s))
#else
#define CLAIMABLE(t, s) (!TAKEN(t, s))
#endif

/* Dependencies of v on the older u. */
#ifdef BUG_NO_RAW
#define RAW(u, v) 0
#else
#define RAW(u, v) (dst[u] == src[v])
#endif
#ifdef BUG_NO_WAW
#define WAW(u, v) 0
#else
#define WAW(u, v) (dst[u] == dst[v])
#endif
#ifdef BUG_NO_WAR
#define WAR(u, v) 0
#else
#define WAR(u, v) (src[u] == dst[v])
#endif
#define DEPENDS(u, v) (RAW(u, v) || WAW(u, v) || WAR(u, v))

inline take(t, s) { claim[SLOT(t)] = claim[SLOT(t)] | (1 << (s)) }
inline give_back(t, s) { claim[SLOT(t)] = claim[SLOT(t)] & ~(1 << (s)) }

/* Only who holds the claim finishes, and a claimed, undone segment keeps its slot. */
inline finish(t, s) {
	atomic {
		assert(done_gen[SLOT(t)] == GEN(t) && !BIT(done[SLOT(t)], s));
		done[SLOT(t)] = done[SLOT(t)] | (1 << (s))
	}
}

/* A copy of one segment has two steps. Between them nobody may write what is read, or look at what
 * is written. */
inline copy_reads(from, to, s) {
	d_step {
		assert(!writing[CELL(from, s)]);
		assert(!writing[CELL(to, s)] && reading[CELL(to, s)] == 0);
		reading[CELL(from, s)]++;
		writing[CELL(to, s)] = 1;
		value = mem[CELL(from, s)];
		copying = 1
	}
}

inline copy_writes(from, to, s) {
	d_step {
		mem[CELL(to, s)] = value;
		reading[CELL(from, s)]--;
		writing[CELL(to, s)] = 0;
		value = 0;
		copying = 0
	}
}

/* What a memcpy at this moment would have done. */
inline copy_wanted(to, from) {
	k = 0;
	do
	:: k == SEGS -> break
	:: else -> want[CELL(to, k)] = want[CELL(from, k)]; k++
	od;
	k = 0
}
