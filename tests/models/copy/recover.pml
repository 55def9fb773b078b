/* The service dies at any step, holding whatever it holds; or sleeps. THREADS: 1 or 2. */
#define TASKS 3
#ifndef THREADS
#define THREADS 1
#endif
#if THREADS == 1
#define SLOTS 3
#define SEGS 2
#else
#define SLOTS 2
#define SEGS 1
#endif
#define BUFFERS 5
#ifndef WORKERS
#define WORKERS 1
#endif
#define LENGTH 8
#define FINE 0
#define ABORTS (THREADS == 1)
#define HANDLERS 0
#define DEATH 1
#include "copy.pml"
#include "service.pml"
#include "client.pml"

#define A 0
#define B 1
#define C 2
#define D 3
#define E 4
#define LAST (SEGS - 1)
#define OVER OP(END, 0, 0, 0); OP(FINISH, 0, 0, 0)
#define SECOND OVER; length = LENGTH

init {
	byte k;
	atomic {
		mortal = 1;
		if
		:: hasty = 0
		:: hasty = 1
		fi;
		if
		:: nap = 0
		:: nap = 1
		fi;
#if THREADS == 1
		if
		:: /* B is used before the next copy, which may be under way */
			OP(SUBMIT, A, B, LAZY); OP(WRITE, B, 0, 0); OP(SUBMIT, B, C, 0);
			OP(WRITE, A, 0, 0); OP(READ, C, LAST, 0)
		:: /* absorbed when it dies; copies go on without a service */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, 0); OP(READ, C, LAST, 0);
			OP(WRITE, C, LAST, 0); OP(SUBMIT, D, A, 0); OP(READ, A, 0, 0)
		:: /* write after write, write after read */
			OP(SUBMIT, A, C, 0); OP(SUBMIT, B, C, LAZY); OP(SUBMIT, D, B, 0);
			OP(READ, B, 0, 0)
		:: /* abort is lost with the service */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, LAZY); OP(ABORT, B, 0, 0);
			OP(WRITE, A, 0, 0); OP(READ, C, 0, 0)
		fi;
#else
		if
		:: /* two that wait for the same */
			OP(SUBMIT, A, B, 0); OP(TELL, 0, 0, 0); OP(READ, B, 0, 0);
			OP(WRITE, A, 0, 0); SECOND; OP(HEAR, 0, 0, 0); OP(SUBMIT, B, C, 0);
			OP(READ, C, 0, 0)
		:: /* two chains; a third copy finds no slot, or no service */
			OP(SUBMIT, A, B, 0); OP(WRITE, B, 0, 0); OP(SUBMIT, B, E, 0); SECOND;
			OP(SUBMIT, C, D, LAZY); OP(READ, D, 0, 0)
		:: /* one writes the source that the other has it read past */
			OP(SUBMIT, A, B, LAZY); OP(TELL, 0, 0, 0); OP(WRITE, A, 0, 0); SECOND;
			OP(HEAR, 0, 0, 0); OP(SUBMIT, B, C, 0); OP(READ, C, 0, 0);
			OP(SUBMIT, C, D, 0)
		fi;
#endif
		OVER;
		start()
	}
}
