/* Two slots for four tasks, two threads of the client, lines written and read word by word. */
#define TASKS 4
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef SEGS
#define SEGS 1
#endif
#define BUFFERS 5
#ifndef WORKERS
#define WORKERS 1
#endif
#define THREADS 2
#define LENGTH 8
#ifndef FINE
#define FINE 1
#endif
#define ABORTS 1
#define HANDLERS 0
#define DEATH 0
#include "copy.pml"
#include "service.pml"
#include "client.pml"

#define A 0
#define B 1
#define C 2
#define D 3
#define E 4
#define SECOND length = LENGTH

init {
	byte k;
	atomic {
		if
		:: hasty = 0
		:: hasty = 1
		fi;
		if
		:: nap = 0
		:: nap = 1
		fi;
		if
		:: /* a dependent of what is aborted, behind a ticket that is not written yet */
			OP(SUBMIT, D, E, 0); OP(END, 0, 0, 0); OP(FINISH, 0, 0, 0); SECOND;
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, LAZY); OP(ABORT, B, 0, 0);
			OP(WRITE, A, 0, 0); OP(READ, C, 0, 0)
		:: /* a waiter that comes late: the slot may be another task's */
			OP(SUBMIT, A, B, 0); OP(TELL, 0, 0, 0); OP(SUBMIT, C, D, 0);
			OP(SUBMIT, C, A, 0); OP(END, 0, 0, 0); OP(FINISH, 0, 0, 0);
			SECOND; OP(HEAR, 0, 0, 0); OP(READ, B, 0, 0)
		:: /* two waiters for one chain, which goes on */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, 0); OP(TELL, 0, 0, 0);
			OP(READ, C, 0, 0); OP(SUBMIT, D, A, 0); OP(END, 0, 0, 0);
			OP(FINISH, 0, 0, 0); SECOND; OP(HEAR, 0, 0, 0); OP(READ, B, 0, 0);
			OP(READ, C, 0, 0)
		:: /* two threads submit, one line is not written yet */
			OP(SUBMIT, A, B, 0); OP(READ, B, 0, 0); OP(END, 0, 0, 0);
			OP(FINISH, 0, 0, 0); SECOND; OP(SUBMIT, C, D, 0); OP(WRITE, C, 0, 0);
			OP(SUBMIT, E, C, 0); OP(SUBMIT, D, E, 0); OP(READ, E, 0, 0)
		:: /* one source, two readers */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, D, 0); OP(READ, D, 0, 0);
			OP(END, 0, 0, 0); OP(FINISH, 0, 0, 0); SECOND; OP(SUBMIT, A, C, LAZY);
			OP(SUBMIT, C, E, 0); OP(READ, E, 0, 0)
		:: /* the source is written by one, while the other has it read past */
			OP(SUBMIT, A, B, LAZY); OP(TELL, 0, 0, 0); OP(WRITE, A, 0, 0);
			OP(SUBMIT, A, D, 0); OP(END, 0, 0, 0); OP(FINISH, 0, 0, 0); SECOND;
			OP(HEAR, 0, 0, 0); OP(SUBMIT, B, C, 0); OP(READ, C, 0, 0)
		:: /* nothing but lazy tasks, more than there are slots */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, LAZY); OP(SUBMIT, C, D, LAZY);
			OP(SUBMIT, D, E, LAZY); OP(END, 0, 0, 0); OP(FINISH, 0, 0, 0); SECOND
		fi;
		OP(END, 0, 0, 0); OP(FINISH, 0, 0, 0);
		start()
	}
}
